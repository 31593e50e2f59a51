"""gpt-oss behind OpenAI's Responses API (vLLM): reasoning, calls and text as items of the output (oss_client.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.document_text import without_special_tokens
from agentir.chat.dialects.generic import finish_of, generation, sent_arguments, with_raw
from agentir.chat.dialects.leaks import readable, without_known
from agentir.chat.model import Finish, Generation, ToolSchema
from agentir.chat.transcripts import clean_reasoning
from agentir.chat.written_calls import as_arguments, harmony_calls, json_value
from agentir.records import Message, ToolCall

CALL_TYPES = ("function_call", "mcp_call")
CUT_STATUS = ("incomplete", "in_progress")
_TOKEN = re.compile(r"<\|start\|>(?:assistant)?|<\|channel\|>(?:analysis|commentary|final)?|<\|[a-z]+\|>")


class GptOssDialect:
    """Responses: output items go back as they came, but for calls that the server took for its own (`mcp_call`).

    A reply that ends in reasoning, without a call, is one that the server's parser broke: it is refused, unless a call
    stands in the reasoning.
    """

    api: Literal["responses"] = "responses"

    def request(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """See `Dialect.request`."""
        body: dict[str, Any] = {"input": [item for message in messages for item in _sent(message)]}
        if prompts := [message.content for message in messages if message.role == "system"]:
            body["instructions"] = "\n\n".join(prompts)
        if tools:
            body["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in tools
            ]
        return body

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        mended = [_without_leaks(item) for item in _items(reply)]
        items = [item for item, _ in mended]
        finish = _finish(reply, items)
        ends_in_reasoning = not items or items[-1]["type"] == "reasoning"
        listed = [_call(item) for item in items if item["type"] in CALL_TYPES]
        leaked = [call for _, calls in mended for call in calls]
        meant = [call for item, calls in mended for call in calls if ends_in_reasoning or item["type"] == "message"]
        calls = listed or without_known(meant, ())
        if finish == "stop" and ends_in_reasoning and not calls:
            raise BadReplyError("expected a message or a call, found an output that ends in reasoning")
        note = f"{len(leaked)} tool calls leaked into the text, {0 if listed else len(calls)} of them are made"
        found = generation(
            "\n".join(text for item in items if item["type"] == "reasoning" and (text := _reasoning(item))),
            "\n".join(text for item in items if item["type"] == "message" and (text := _text(item))),
            calls,
            finish,
            None,
            notes=(note,) if leaked else (),
        )
        return with_raw(found, _given_back(items, found.calls))


def _sent(message: Message) -> list[dict[str, Any]]:
    """A message as items of the input; the system's stand in the instructions."""
    if message.role == "system":
        return []
    if message.role == "tool":
        output = without_special_tokens(message.content)
        return [{"type": "function_call_output", "call_id": message.call_id, "output": output}]
    if isinstance(message.raw, list):
        return message.raw
    said = [{"role": message.role, "content": message.content}] if message.content or not message.calls else []
    return [*said, *map(_call_item, message.calls)]


def _given_back(items: Sequence[dict[str, Any]], calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The output as input: each call under the id by which it is answered, and none that is not answered."""
    waiting = list(calls)
    given: list[dict[str, Any]] = []
    for item in items:
        if item["type"] not in CALL_TYPES:
            given.append(item)
        elif waiting:
            call = waiting.pop(0)
            unchanged = item["type"] == "function_call" and item.get("call_id") == call.call_id
            given.append(item if unchanged else _call_item(call))
    return [*given, *map(_call_item, waiting)]


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": sent_arguments(call)}


def _finish(reply: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Finish:
    """How the reply ended.

    Servers call a reply completed that was cut in an item (vLLM); the item's own status then says so.

    Raises:
        BadReplyError: it failed, or did not end.
    """
    status, details = reply.get("status"), reply.get("incomplete_details")
    if status in ("completed", None):
        return "length" if any(item.get("status") in CUT_STATUS for item in items) else "stop"
    if status == "incomplete":
        finish = finish_of(details.get("reason") if isinstance(details, dict) else None)
        return "length" if finish == "stop" else finish
    error = reply.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    raise BadReplyError(f"the reply's status is {str(status)[:100]!r}: {str(said or 'no reason given')[:200]}")


def _items(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = reply.get("output")
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in items
    ):
        raise BadReplyError(f"expected output, a list of items with a type, found {str(items)[:200]}")
    return items


def _without_leaks(item: dict[str, Any]) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
    """The item without tool calls in its texts, and those calls."""
    found: list[ToolCall] = []
    changed: dict[str, Any] = {}
    for key in ("content", "summary") if item["type"] in ("reasoning", "message") else ():
        parts = _parts(item, key)
        for place, part in enumerate(parts):
            written = harmony_calls(part["text"]) if isinstance(part.get("text"), str) else None
            if written and (calls := readable(written)):
                found += calls
                parts[place] = {**part, "text": written.text}
                changed[key] = parts
    return {**item, **changed} if changed else item, tuple(found)


def _parts(item: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = item.get(key)
    if isinstance(value, str):
        return [{"type": "output_text", "text": value}]
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _texts(item: Mapping[str, Any], key: str, kinds: Mapping[str, str]) -> list[str]:
    """The texts of an item's parts, without markup; `kinds`: type of a part -> where its text is."""
    found = [part.get(kinds.get(str(part.get("type")), "")) for part in _parts(item, key)]
    cleaned = (_TOKEN.sub(" ", text).strip() for text in found if isinstance(text, str))
    return [text for text in cleaned if text]


def _reasoning(item: Mapping[str, Any]) -> str:
    texts = _texts(item, "content", {"reasoning_text": "text"}) or _texts(item, "summary", {"summary_text": "text"})
    return clean_reasoning(" ".join(texts))


def _text(item: Mapping[str, Any]) -> str:
    return "".join(_texts(item, "content", {"output_text": "text", "refusal": "refusal"}))


def _call(item: Mapping[str, Any]) -> ToolCall:
    name, given = item.get("name"), item.get("arguments")
    if not isinstance(name, str):
        raise BadReplyError(f"expected a call with a name, found {str(dict(item))[:200]}")
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    call_id = next((found for key in ("call_id", "id") if isinstance(found := item.get(key), str)), "")
    return ToolCall(call_id=call_id, name=name, arguments=as_arguments(json_value(raw)), raw_arguments=raw)
