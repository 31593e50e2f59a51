"""A dialect: how a family of models is sent a conversation, and how its replies are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from agentir.chat.model import Generation, ToolSchema
from agentir.records import Message


class BadReplyError(ValueError):
    """A reply that holds no message; another try may give one."""


class Dialect(Protocol):
    """Translates between our messages and one family's requests and replies, which are plain JSON objects.

    A dialect has no state: the same messages give the same request.
    """

    @property
    def api(self) -> Literal["chat", "responses"]:
        """Which of OpenAI's interfaces it speaks: chat completions or responses."""
        ...

    def request(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """The body of a request without model and sampling settings: messages or input, tools, stop strings.

        Tools come in the request, or in the system prompt of a family that calls them in its text. An assistant's message
        goes back as its `raw` says, without what the family does not read again.
        """
        ...

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """The reply's message; usage and latency are filled in by the caller.

        A generation that was cut has no calls and no answer, whatever it holds.
        The `text` of one that ended by itself is all that the model said besides its thinking: whoever passes no tools reads
        it, since the `answer` may be a marked part of it, or empty where nothing is marked.

        Raises:
            BadReplyError: the reply is no such message.
        """
        ...
