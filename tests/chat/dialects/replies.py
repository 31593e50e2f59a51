"""Replies and conversations that the tests of several dialects use."""

from typing import Any

from agentir.chat.dialects.dialect import Dialect
from agentir.chat.model import Generation, ToolSchema
from agentir.records import Message

SEARCH = ToolSchema(
    name="search",
    description="Finds documents.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
SEARCH_LINE = (
    '{"type": "function", "function": {"name": "search", "description": "Finds documents.", "parameters": '
    '{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}'
)
PROMPT = (Message(role="system", content="Be brief."), Message(role="user", content="Who wrote Peer Gynt?"))


def chat_reply(content: Any = None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}]}


def listed(call_id: str | None, arguments: Any, name: str = "search") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def made(generation: Generation) -> list[tuple[str, str, Any]]:
    return [(call.call_id, call.name, call.arguments) for call in generation.calls]


def results(generation: Generation) -> list[Message]:
    """A result for each call, the last first: dialects that know an order have to restore it."""
    return [
        Message(role="tool", call_id=call.call_id, content=f"result {number}")
        for number, call in reversed(list(enumerate(generation.calls)))
    ]


def next_messages(dialect: Dialect, generation: Generation) -> list[dict[str, Any]]:
    """What the model is sent after its calls were answered, without the prompt."""
    body = dialect.request([*PROMPT, generation.message, *results(generation)], [SEARCH])
    sent: list[dict[str, Any]] = body["messages"]
    return sent[2:]
