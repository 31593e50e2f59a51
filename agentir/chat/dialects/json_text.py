"""Small local models without tool calls: told of their tools in the system prompt, asked for one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentir.chat.dialects.generic import chat_message, generation, unsplit
from agentir.chat.dialects.json_steps import read_steps
from agentir.chat.dialects.text_protocol import cut_at, reply_text, text_messages, tool_lines
from agentir.chat.model import Generation, ToolSchema
from agentir.chat.transcripts import ThinkBlocks, clean_reasoning, split_thinking
from agentir.chat.written_calls import json_objects
from agentir.records import Message

STOP = ("\n[Result of ",)
"""The model would go on with a tool's result of its own making."""
_RESULT = "[Result of "
_MADE_UP = re.compile(rf"^[ \t]*+{re.escape(_RESULT)}", re.MULTILINE)
_TOOLS_BEGIN = """# Tools

You can use these tools, one a line, with the JSON schema of their arguments:
"""
_TOOLS_END = """

# Replies

Each of your replies is one JSON object and nothing else. To use a tool:
{"thought": "why you need it", "tool": "name of the tool", "arguments": {"name of an argument": "its value"}}
You are then shown the result. When you know the answer:
{"thought": "how you know it", "answer": "your answer"}"""


class JsonTextDialect:
    """A text protocol over chat completions; without tools it is plain chat.

    Models that go on in prose are held to JSON by a server that can: `{response_format = {type = "json_object"}}` in the
    `extra_body` of llama.cpp, vLLM and most hosts.

    A generation's `text` is the reply as it is, also where it is a JSON object with an answer; without its calls, where it
    has any.

    Args:
        think_blocks: which of several thoughts in one message is its reasoning.
        thinking: whether the model is to think; if not, a reply that is all reasoning is a text.
    """

    api: Literal["chat"] = "chat"

    def __init__(self, think_blocks: ThinkBlocks = "last", thinking: bool = True) -> None:
        self.think_blocks = think_blocks
        self.thinking = thinking

    def request(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """See `Dialect.request`."""
        part = f"{_TOOLS_BEGIN}{tool_lines(tools)}{_TOOLS_END}" if tools else ""
        body: dict[str, Any] = {"messages": text_messages(messages, part, _written, _answered, "\n\n")}
        if tools:
            body["stop"] = list(STOP)
        return body

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        message, finish = chat_message(reply)
        thoughts, visible = split_thinking(reply_text(message if self.thinking else unsplit(message)))
        objects = ((start, end) for start, end, value in json_objects(visible) if value is not None)
        visible, cut = cut_at(visible, _MADE_UP, objects)
        found = read_steps(visible)
        thinking = "\n".join(thoughts if self.think_blocks == "join" else thoughts[-1:])
        places = ("\n".join(found.thoughts), thinking, found.before)
        return generation(
            next((text for place in places if (text := clean_reasoning(place))), ""),
            clean_reasoning(found.rest) if found.calls else visible,
            found.calls,
            finish,
            visible,
            answer=found.answer,
            notes=(*cut, *found.notes),
        )


def _written(message: Message) -> str:
    """An assistant's message as the model wrote it, or would have."""
    if isinstance(message.raw, str):
        return message.raw
    if not message.calls:
        return message.content
    steps = [
        {"thought": message.reasoning, "tool": call.name, "arguments": call.arguments or {}} for call in message.calls
    ]
    return "\n".join(json.dumps(step, ensure_ascii=False) for step in steps)


def _answered(name: str, content: str) -> str:
    return f"{_RESULT}{name}]\n{content}"
