"""Tongyi-DeepResearch: tools in the system prompt; `<think>`, `<tool_call>` and `<answer>` in the text (react_agent.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentir.chat.dialects.generic import CALL_PREFIX, chat_message, generation
from agentir.chat.dialects.leaks import with_leaked_calls
from agentir.chat.dialects.text_protocol import cut_at, reply_text, text_messages, tool_lines
from agentir.chat.model import Generation, ToolSchema
from agentir.chat.transcripts import ThinkBlocks, assistant_turn, ends_in_thought, tagged_answer, thinking_spans
from agentir.records import Message

STOP = ("\n<tool_response>",)
"""The model would go on with a tool's result of its own making; in the middle of a line it names the tag."""
_RESULT = "<tool_response>"
_MADE_UP = re.compile(_RESULT)
_BLOCK = re.compile(r"<(tool_call|answer)>(?:(?!</?\1>).)*+</\1>", re.DOTALL)
_ANSWER_TAG = re.compile(r"</?answer>")
_TOOLS_BEGIN = """# Tools

These are your tools, one a line, with the JSON schema of their arguments:
<tools>
"""
_TOOLS_END = """
</tools>

To call a tool, write its name and its arguments as one JSON object between these tags, and stop there:
<tool_call>
{"name": <name of the tool>, "arguments": {<name of an argument>: <its value>}}
</tool_call>
You are then given what it returned between <tool_response> and </tool_response>. Never write those tags yourself.

# Answer

Once you know enough, write your final answer between <answer> and </answer>, without a tool call beside it."""


class TongyiDialect:
    """A text protocol over chat completions; the results of one turn come back in one user's message.

    The tools are part of the system prompt. Whoever wants an answer without further calls asks for it in a message and
    passes the same tools as before: the prompt then stays the same, and so do its cached parts.

    A generation's `text` is what the model said besides thoughts and calls, without the tags of an answer. Its `answer` is
    what stands between those tags, empty where there are none: whoever passes no tools takes the text.

    Args:
        think_blocks: which of several thoughts in one message is its reasoning.
    """

    api: Literal["chat"] = "chat"

    def __init__(self, think_blocks: ThinkBlocks = "last") -> None:
        self.think_blocks = think_blocks

    def request(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """See `Dialect.request`."""
        part = f"{_TOOLS_BEGIN}{tool_lines(tools)}{_TOOLS_END}" if tools else ""
        return {"messages": text_messages(messages, part, _written, _answered, "\n"), "stop": list(STOP)}

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        message, finish = chat_message(reply)
        written = reply_text(message)
        blocks = (block.span() for block in _BLOCK.finditer(written))
        content, notes = cut_at(written, _MADE_UP, (*thinking_spans(written, ends_before_call=True), *blocks))
        turn = assistant_turn({"content": content}, "message", CALL_PREFIX, self.think_blocks)
        if not turn.calls and not turn.text:
            turn = with_leaked_calls(turn)
        if finish == "stop" and not turn.calls and ends_in_thought(content):
            notes = (*notes, "the reply ends in a thought: it holds neither a call nor an answer")
        return generation(
            turn.reasoning,
            _ANSWER_TAG.sub("", turn.text).strip(),
            turn.calls,
            finish,
            content,
            answer=tagged_answer(turn.text) or "",
            notes=(*notes, *turn.notes),
        )


def _written(message: Message) -> str:
    """An assistant's message as the model wrote it, or would have."""
    if isinstance(message.raw, str):
        return message.raw
    thought = f"<think>\n{message.reasoning}\n</think>" if message.reasoning else ""
    calls = [json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in message.calls]
    blocks = (f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return "\n".join(part for part in (thought, message.content, *blocks) if part)


def _answered(name: str, content: str) -> str:
    return f"{_RESULT}\n{content}\n</tool_response>"
