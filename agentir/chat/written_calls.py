"""Tool calls that models write as text, where their server does not read them: in `<tool_call>` tags, in the channel markup
of gpt-oss, or as JSON.

Nothing here raises, whatever the text, and the time is linear in its length. The calls found have no ids.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from agentir.jsonl import clean_text, loads
from agentir.records import ToolCall

NAME_KEYS = ("name", "tool", "action")
ARGUMENT_KEYS = ("arguments", "args", "parameters", "action_input")
MAX_DEPTH = 50
"""Arguments nested deeper cannot be read: the line that keeps them nests deeper still (see `agentir.jsonl.MAX_DEPTH`)."""
MAX_UNREADABLE = 50
"""A text is not searched further after so many places that cannot be read: each may cost a pass over the text."""
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into JSON strings
_TAG = re.compile(r"<(/?)tool_call\s*+>", re.IGNORECASE)
_GAP = re.compile(r"(?:\s|,|```(?:json)?)*+")
_ARGUMENT_TAG = re.compile(r"<(/?)arg_(key|value)\s*+>")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_CHANNEL = r"(?:<\|channel\|>\s*+(?:(?:commentary|analysis)\s*+)?)?"
_HARMONY = re.compile(
    rf"(?:<\|start\|>assistant\s*+)?{_CHANNEL}to=(?:functions\.)?([\w.-]++)\s*+{_CHANNEL}"
    r"(?:(?:<\|constrain\|>)?\s*+json\s*+)?<\|message\|>\s*+"
)
_HARMONY_END = re.compile(r"\s*+<\|(?:call|end|return)\|>")
_JSON_START = re.compile(r'(?:```\w*+\s*+)?(\{(?=\s*+")|\[(?=\s*+\{))')
_FENCE = re.compile(r"\s*+```")
_AROUND = re.compile(r"(?:[\s{}`,]|</?tool_call>)*+")
"""What stands around calls without tags: half of a pair of tags, or the doubled braces of a template."""


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """The calls in a text, the text without them, and what had to be mended."""

    calls: tuple[ToolCall, ...]
    text: str
    notes: tuple[str, ...] = ()


def tagged_calls(text: str) -> WrittenCalls:
    """The calls in `<tool_call>` tags: JSON objects (Qwen, Tongyi) or a name with `<arg_key>` and `<arg_value>` (GLM).

    A block ends at its closing tag, at the next opening one or with the text. It may hold several objects; what follows them
    is left out and noted. A block that cannot be read is a call without a name and arguments.
    """
    tags = list(_TAG.finditer(text))
    starts = [tag.start() for tag in tags]
    calls: list[ToolCall] = []
    kept: list[str] = []
    notes: list[str] = []
    position = num_unreadable = 0
    for tag, following in zip_longest(tags, tags[1:]):
        if tag.start() < position or tag[1]:
            continue
        if following and not following[1] and not text[tag.end() : following.start()].strip():
            kept.append(text[position : tag.start()])  # an opening tag written twice
            position = following.start()
            continue
        if num_unreadable >= MAX_UNREADABLE:
            notes.append(f"after {MAX_UNREADABLE} tool calls that cannot be read, the rest was not searched")
            break
        found, end = _block(text, tag.end(), starts)
        place = bisect_left(starts, end)
        closing = tags[place] if place < len(tags) else None
        limit = closing.start() if closing else len(text)
        kept.append(text[position : tag.start()])
        position = closing.end() if closing and closing[1] else limit
        calls += found
        num_unreadable += sum(call.arguments is None for call in found)
        if len(found) > 1:
            notes.append(f"{len(found)} tool calls in one block")
        if not (closing and closing[1]):
            notes.append("a tool call without its closing tag")
        if rest := text[end:limit].strip("` \t\r\n"):
            notes.append(f"text after a tool call was left out: {rest[:100]!r}")
    kept.append(text[position:])
    return WrittenCalls(tuple(calls), "".join(kept).strip(), tuple(dict.fromkeys(notes)))


def harmony_calls(text: str) -> WrittenCalls:
    """The calls in gpt-oss's own markup, `<|channel|>commentary to=functions.search <|constrain|>json<|message|>{...}<|call|>`.

    The recipient may also stand before the channel.
    """
    calls: list[ToolCall] = []
    kept: list[str] = []
    notes: tuple[str, ...] = ()
    position = num_unreadable = 0
    for header in _HARMONY.finditer(text):
        if header.start() < position:
            continue
        if num_unreadable >= MAX_UNREADABLE:
            notes = (f"after {MAX_UNREADABLE} tool calls that cannot be read, the rest was not searched",)
            break
        if found := json_at(text, header.end()):
            value, end = found
        else:
            value, end = None, _found_or_end(text, "<|", header.end())
        arguments = as_arguments(_vetted(value))
        num_unreadable += arguments is None
        raw = text[header.end() : end].strip()
        calls.append(ToolCall(call_id="", name=header[1], arguments=arguments, raw_arguments=raw))
        kept.append(text[position : header.start()])
        closing = _HARMONY_END.match(text, end)
        position = closing.end() if closing else end
    kept.append(text[position:])
    return WrittenCalls(tuple(calls), "".join(kept).strip(), notes)


def bare_calls(text: str) -> WrittenCalls:
    """The calls that a text ends with, as JSON objects without tags, bare or in fences (```)."""
    calls: list[ToolCall] = []
    first = position = 0
    for start, end, value in json_objects(text):
        if not calls or not is_gap(text, position, start):
            calls, first = [], start
        if all(is_call(step) for step in (value if isinstance(value, list) else [value])):
            calls += _calls_of(value, text[start:end])
        else:
            calls = []
        position = end
    if not calls or not is_gap(text, position, len(text)):
        return WrittenCalls((), text)
    return WrittenCalls(tuple(calls), text[:first].rstrip(" \t\r\n{`"), ("tool calls without tags",))


def json_objects(text: str) -> Iterator[tuple[int, int, Any]]:
    """The JSON objects and lists of objects in a text, with where they begin and end, fences (```) included.

    What begins like one and cannot be read is given as None, with its bracket as its end: the search goes on inside it.
    """
    position = num_unreadable = 0
    while num_unreadable < MAX_UNREADABLE and (opening := _JSON_START.search(text, position)):
        if (found := json_at(text, opening.start(1))) is None:
            num_unreadable += 1
            position = opening.end()
            yield opening.start(), position, None
            continue
        value, position = found
        if opening.start() < opening.start(1) and (fence := _FENCE.match(text, position)):
            position = fence.end()
        yield opening.start(), position, value


def is_gap(text: str, start: int, end: int) -> bool:
    """Whether nothing stands there but what may surround a call without tags."""
    return _AROUND.fullmatch(text, start, end) is not None


def is_call(value: object) -> bool:
    """Whether a JSON value is an object with a tool's name and arguments, under any of their usual keys."""
    return (
        isinstance(value, dict)
        and any(isinstance(name := value.get(key), str) and name for key in NAME_KEYS)
        and any(key in value for key in ARGUMENT_KEYS)
    )


def as_call(value: object, raw: str) -> ToolCall:
    """The call that a JSON value stands for; the arguments may be an object, or a text that holds one.

    Args:
        value: a JSON value.
        raw: how the model wrote it; kept where the arguments cannot be read.
    """
    given = _vetted(value)
    call: Mapping[str, Any] = given if isinstance(given, dict) else {}
    name = next((call[key] for key in NAME_KEYS if isinstance(call.get(key), str)), "")
    arguments = next((call[key] for key in ARGUMENT_KEYS if key in call), None)
    return _named_call(name, json_value(arguments) if isinstance(arguments, str) else arguments, raw)


def json_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins at a place, with where it ends; None where there is none."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def json_value(text: str) -> Any:
    """The JSON value of a text; None where it is none, or one that no line of a file can hold."""
    try:
        return loads(clean_text(text).encode("utf-8"))
    except (ValueError, RecursionError):
        return None


def as_arguments(value: object) -> dict[str, Any] | None:
    """The value as a call's arguments; None where it is no object, or one nested deeper than `MAX_DEPTH`."""
    return value if isinstance(value, dict) and is_shallow(value) else None


def is_shallow(value: object) -> bool:
    """Whether a JSON value is nested at most `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        lists = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, list | dict)]
        if not lists:
            return True
        level = [inner for one in lists for inner in one]
    return False


def _block(text: str, start: int, starts: list[int]) -> tuple[list[ToolCall], int]:
    """The calls of a block, and where what was read of it ends; `starts` are the places of all tags."""
    calls: list[ToolCall] = []
    position = _after_gap(text, start)
    while text.startswith(("{", "["), position):
        if (found := json_at(text, position)) is None:
            limit = _next(starts, position, len(text))
            return [*calls, as_call(None, text[position:limit])], limit
        value, end = found
        calls += _calls_of(value, text[position:end])
        position = _after_gap(text, end)
    if calls:
        return calls, position
    limit = _next(starts, start, len(text))
    return [_keyed_call(text[start:limit])], limit


def _calls_of(value: object, raw: str) -> list[ToolCall]:
    """The calls that an object or a list of objects stands for; what the model wrote is kept with the first of them."""
    steps = value if isinstance(value, list) and value else [value]
    return [as_call(step, "" if number else raw) for number, step in enumerate(steps)]


def _keyed_call(body: str) -> ToolCall:
    """A call as GLM writes it: values are JSON, but texts stand as they are."""
    name, *parts = _ARGUMENT_TAG.split(body)
    arguments: dict[str, Any] = {}
    key: str | None = None
    for closing, kind, piece in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if closing:
            continue
        if kind == "key":
            key = piece.strip()
        elif key is not None:
            value = json_value(piece)
            arguments[key] = piece.strip("\r\n") if value is None or isinstance(value, str) else value
            key = None
    if key is not None or not _NAME.fullmatch(name.strip()):
        return as_call(None, body)
    return _named_call(name.strip(), arguments, body)


def _named_call(name: str, value: object, raw: str) -> ToolCall:
    """A call with its arguments, if they can be read; if not, with what the model wrote."""
    arguments = as_arguments(value)
    kept = clean_text(raw.strip()) if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call_id="", name=name, arguments=arguments, raw_arguments=kept)


def _vetted(value: object) -> Any:
    """The value as a line of a file would hold it; None where none can: nested too deeply, or not finite."""
    try:
        return json_value(json.dumps(value))
    except (ValueError, RecursionError):
        return None


def _after_gap(text: str, start: int) -> int:
    gap = _GAP.match(text, start)
    return gap.end() if gap else start


def _next(starts: list[int], position: int, otherwise: int) -> int:
    place = bisect_left(starts, position)
    return starts[place] if place < len(starts) else otherwise


def _found_or_end(text: str, part: str, start: int) -> int:
    place = text.find(part, start)
    return len(text) if place < 0 else place
