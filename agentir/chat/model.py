"""What a chat model is asked and what it gives back, whatever its server and its way of calling tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentir.records import STRICT, Message, ToolCall, Usage

Finish = Literal["stop", "calls", "length", "filtered"]
"""How a generation ended: by itself, with tool calls, cut by a token limit, or withheld by the server's filter."""


AUTO, NONE = "auto", "none"
"""Values of `tool_choice`; any other is a tool's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as a model sees it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer of a model.

    Attributes:
        reasoning: the model's thinking, without markup; empty where it showed none.
        text: what it said besides.
        calls: the tool calls it made, in order; one whose arguments could not be read has `arguments` None.
        answer: its final answer, where it gave one: the text of a generation without calls, or what the dialect marks as
            the answer. Empty where the generation was cut.
        finish: how it ended; after "length" nothing of it may be run or learned from.
        usage: what it took, replies that could not be used included.
        context_tokens: tokens of the conversation with this generation, as the server counted them; 0 if it did not.
        latency: seconds from sending the request that succeeded to its last byte.
        raw: what the server sent, in the form in which the dialect sends it back.
        notes: what had to be mended in it.
    """

    __pydantic_config__ = STRICT

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    answer: str = ""
    finish: Finish = "stop"
    usage: Usage = Usage()
    context_tokens: int = 0
    latency: float = 0.0
    raw: Any = None
    notes: tuple[str, ...] = ()

    @property
    def message(self) -> Message:
        """The generation as a message of the conversation."""
        return Message(role="assistant", content=self.text, reasoning=self.reasoning, calls=self.calls, raw=self.raw)


class ChatModel(Protocol):
    """A language model behind some server; many conversations may use it at once."""

    @property
    def name(self) -> str:
        """The model's name, as records show it."""
        ...

    async def generate(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        tool_choice: str = AUTO,
        schema: dict[str, Any] | None = None,
    ) -> Generation:
        """The model's next message.

        Args:
            messages: the conversation so far.
            tools: what it is told of; none: it can only answer.
            tool_choice: "auto", "none", or the name of the tool that it must call; families that call tools in their text are
                not bound by it.
            schema: a JSON schema that its text must follow, where the server can see to that.

        Raises:
            ChatError: the server gave no usable answer, also after repetitions.
            ContextOverflowError: the messages are too long.
            BudgetError: the budget is used up.
        """
        ...
