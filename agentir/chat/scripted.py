"""A chat model that says what it is told to, for tests and examples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentir.chat.model import AUTO, Generation, ToolSchema
from agentir.records import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """What a scripted model was asked."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    tool_choice: str
    schema: dict[str, Any] | None


class ScriptedModel:
    """A `agentir.chat.model.ChatModel` without a server.

    Args:
        replies: the generations to give, one a request; or what makes one of the messages, and may raise a `ChatError`.
        name: the model's name.

    Attributes:
        requests: what was asked so far.
    """

    def __init__(
        self, replies: Callable[[Sequence[Message]], Generation] | Sequence[Generation], name: str = "scripted"
    ) -> None:
        self.requests: list[ScriptedRequest] = []
        self._name = name
        self._reply = replies if callable(replies) else _in_turn(replies)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    async def generate(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        tool_choice: str = AUTO,
        schema: dict[str, Any] | None = None,
    ) -> Generation:
        """The next reply of the script; other conversations go on in the meantime."""
        self.requests.append(
            ScriptedRequest(messages=tuple(messages), tools=tuple(tools), tool_choice=tool_choice, schema=schema)
        )
        await asyncio.sleep(0)
        return self._reply(messages)


def said(text: str) -> Generation:
    """A generation that is a plain answer."""
    return Generation(reasoning="", text=text, answer=text)


def _in_turn(replies: Sequence[Generation]) -> Callable[[Sequence[Message]], Generation]:
    rest: Iterator[Generation] = iter(replies)

    def reply(messages: Sequence[Message]) -> Generation:
        generation = next(rest, None)
        assert generation is not None, f"the script has {len(replies)} replies, and one more was asked for"
        return generation

    return reply
