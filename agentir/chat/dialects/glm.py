"""GLM (z.ai, vLLM): as generic, with calls that leak into the reasoning, and with earlier reasoning sent back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentir.chat.dialects.generic import GenericDialect, chat_message, chat_turn, generation
from agentir.chat.dialects.leaks import with_leaked_calls
from agentir.chat.model import Generation
from agentir.chat.transcripts import ThinkBlocks


class GlmDialect(GenericDialect):
    """Chat completions with interleaved thinking.

    The server keeps the reasoning that is sent back only if it is told to: `{thinking = {type = "enabled", clear_thinking =
    false}}` in the `extra_body` of z.ai, `{chat_template_kwargs = {clear_thinking = false}}` in that of vLLM.

    Args:
        think_blocks: which of several thoughts in one message is its reasoning.
        thinking: whether the model is to think; if not, a reply that is all reasoning is a text.
    """

    def __init__(self, think_blocks: ThinkBlocks = "last", thinking: bool = True) -> None:
        super().__init__(think_blocks, send_reasoning=True, thinking=thinking)

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        message, finish = chat_message(reply)
        turn = with_leaked_calls(chat_turn(message, self.think_blocks, self.thinking))
        return generation(turn.reasoning, turn.text, turn.calls, finish, message, notes=turn.notes)
