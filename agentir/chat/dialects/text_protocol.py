"""Conversations with models that are told of their tools in the system prompt, and call them in their text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.document_text import without_markup
from agentir.chat.dialects.generic import function_tool, joined_users
from agentir.chat.model import ToolSchema
from agentir.chat.transcripts import REASONING_KEYS, message_text
from agentir.jsonl import Misfit
from agentir.records import Message


def text_messages(
    messages: Sequence[Message],
    part: str,
    written: Callable[[Message], str],
    answered: Callable[[str, str], str],
    gap: str,
) -> list[dict[str, Any]]:
    """The messages as plain texts: system, user and assistant only, and never two of the user in a row.

    Args:
        messages: the conversation.
        part: is appended to the system prompt; empty: none is.
        written: an assistant's message as the model wrote it.
        answered: a tool's result as the model reads it, from the tool's name and the content, which has no markup left.
        gap: stands between the results of one turn, which are joined in one user's message in the order of their calls.
    """
    first = messages[0] if messages and messages[0].role == "system" else None
    rest = messages[1:] if first else messages
    prompt = "\n\n".join(text for text in (first.content if first else "", part) if text)
    sent: list[dict[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    names: dict[str, str] = {}
    waiting: list[Message] = []

    def send_results() -> None:
        order = {call_id: place for place, call_id in enumerate(names)}
        waiting.sort(key=lambda message: order.get(message.call_id, len(order)))
        if waiting:
            texts = (answered(names.get(message.call_id, ""), without_markup(message.content)) for message in waiting)
            sent.append({"role": "user", "content": gap.join(texts)})
        waiting.clear()

    for message in rest:
        if message.role == "tool":
            waiting.append(message)
            continue
        send_results()
        if message.role == "assistant":
            names = {call.call_id: call.name for call in message.calls}
        content = written(message) if message.role == "assistant" else message.content
        sent.append({"role": message.role, "content": content})
    send_results()
    return joined_users(sent)


def tool_lines(tools: Sequence[ToolSchema]) -> str:
    """The tools, one JSON object a line, as chat completions have them."""
    return "\n".join(json.dumps(function_tool(tool), ensure_ascii=False) for tool in tools)


def reply_text(message: Mapping[str, Any]) -> str:
    """The text of a reply's message; a thought that its server split off stands between tags before it.

    Raises:
        BadReplyError: the content is no text.
    """
    try:
        content, thoughts = message_text(message.get("content"), "message.content")
        split = [message_text(message.get(key), f"message.{key}") for key in REASONING_KEYS]
    except Misfit as misfit:
        raise BadReplyError(str(misfit)) from None
    places = [*("\n".join((text, *parts)).strip() for text, parts in split), "\n".join(thoughts)]
    thought = next((place for place in places if place), "")
    return f"<think>\n{thought}\n</think>\n\n{content}" if thought else content


def cut_at(text: str, marker: re.Pattern[str], spans: Iterable[tuple[int, int]]) -> tuple[str, tuple[str, ...]]:
    """The text up to a tool's result that the model made up, and a note if there was one.

    Args:
        text: what the model wrote.
        marker: what a result begins with.
        spans: parts of the text in which it is only named.
    """
    position = 0
    for start, end in (*sorted(spans), (len(text), len(text))):
        if position < start and (found := marker.search(text, position, start)):
            note = f"cut off at a tool result that the model wrote itself: {len(text) - found.start()} characters"
            return text[: found.start()].removesuffix("\n"), (note,)
        position = max(position, end)
    return text, ()
