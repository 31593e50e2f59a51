"""Context policies: what of a conversation is sent to the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentir.records import Message

CHARS_PER_TOKEN = 4
"""A rough measure for texts that the server has not counted yet; it counts JSON and other scripts too low."""


class ContextPolicy(Protocol):
    """Shortens what is sent; the stored transcript is never edited."""

    def view(self, messages: Sequence[Message], num_tokens: int) -> Sequence[Message]:
        """The messages that are sent: all, or fewer and shorter ones.

        Args:
            messages: the whole conversation.
            num_tokens: about how many tokens it takes.
        """
        ...


class WholeContext:
    """Sends everything, as AgentIR's agents do."""

    def view(self, messages: Sequence[Message], num_tokens: int) -> Sequence[Message]:
        """See `ContextPolicy.view`."""
        return messages


def estimated_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens messages take that the server has not counted yet."""
    return sum(len(message.content) for message in messages) // CHARS_PER_TOKEN
