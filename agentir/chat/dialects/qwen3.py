"""Qwen3: thinking in the content or split off by the server's parser, calls listed or in `<tool_call>` tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentir.chat.dialects.generic import GenericDialect, chat_message, chat_turn, generation
from agentir.chat.dialects.leaks import with_leaked_calls
from agentir.chat.model import Generation
from agentir.chat.transcripts import ThinkBlocks


class Qwen3Dialect(GenericDialect):
    """Chat completions; reasoning is sent back, of which the model's own template keeps what follows the last question.

    A thought that is never closed is all there is: the server's parser then gives a call inside it as part of the reasoning.
    Such a call is made, if the reply holds nothing else.

    Args:
        think_blocks: which of several thoughts in one message is its reasoning.
        thinking: whether the model is to think; if not, a reply that is all reasoning is a text.
    """

    def __init__(self, think_blocks: ThinkBlocks = "last", thinking: bool = True) -> None:
        super().__init__(think_blocks, send_reasoning=True, thinking=thinking)

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        message, finish = chat_message(reply)
        turn = chat_turn(message, self.think_blocks, self.thinking)
        if not turn.calls and not turn.text:
            turn = with_leaked_calls(turn)
        return generation(turn.reasoning, turn.text, turn.calls, finish, message, notes=turn.notes)
