"""What the JSON objects of a reply stand for: calls or an answer, of which the last ones decide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentir.chat.written_calls import as_call, is_call, is_gap, json_at, json_objects
from agentir.records import ToolCall

KEYS = ("thought", "tool", "answer")
"""Of the objects that the model is asked for."""
_START = re.compile(r"(?:\s|<tool_call>|```(?:json)?)*+(?:\{\s*+)*(?=\{)")
_KEYED = re.compile(r'\{\s*+"[^"\\]*+"\s*+:')
_MEANT = re.compile(r"""["'](?:thought|tool|answer|arguments)["']""")
_MEANT_AS_CALL = re.compile(r"""["'](?:tool|arguments)["']""")


@dataclass(frozen=True, slots=True)
class Steps:
    """What a reply says.

    Attributes:
        rest: the text around its calls.
        before: the text before what decides.
        thoughts: of the objects that decide.
        calls: the calls it makes.
        answer: its answer; None: it holds no object that is meant as one.
        notes: what was left out.
    """

    rest: str
    before: str = ""
    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    notes: tuple[str, ...] = ()


def read_steps(text: str) -> Steps:
    """The calls among the last objects, or else the last answer; objects before them are quoted in the text.

    The last objects are the final one and those before it with nothing between them. Nothing is taken from inside an
    object that cannot be read: if that is the last, it is a call that cannot be read, or no answer.
    """
    steps = list(_steps(text))
    if not steps:
        return _without_steps(text)
    first = len(steps) - 1
    while first and _adjacent(text, steps[first - 1], steps[first]):
        first -= 1
    last = steps[first:]
    calls = [step for step in last if _calls(step.value)]
    chosen = calls or last[-1:]
    before = text[: last[0].start]
    notes = _left_out(len(steps) - len(chosen))
    thoughts = tuple(thought for step in chosen if isinstance(thought := step.value.get("thought"), str))
    if calls:
        rest = before + text[last[-1].end :]
        return Steps(rest=rest, before=before, thoughts=thoughts, calls=tuple(_as_calls(text, calls)), notes=notes)
    if (answer := chosen[0].value.get("answer")) is not None:
        return Steps(rest=text, before=before, thoughts=thoughts, answer=_as_text(answer), notes=notes)
    written = text[chosen[0].start :].strip()
    if _MEANT_AS_CALL.search(written):
        return Steps(rest=before, before=before, calls=(as_call(None, written),), notes=notes)
    return Steps(rest=text, before=before, answer="", notes=(*notes, "a JSON object that cannot be read is no answer"))


@dataclass(frozen=True, slots=True)
class _Step:
    """A call or an answer; an empty one stands for an object that cannot be read, and runs to the end of the text."""

    start: int
    end: int
    value: Mapping[str, Any]


def _steps(text: str) -> Iterator[_Step]:
    """The calls and answers in a text, also those in a list, up to an object that cannot be read."""
    opening = _START.match(text)
    if opening and json_at(text, opening.end()) is None:
        yield _Step(0, len(text), {})
        return
    for start, end, value in json_objects(text):
        if value is None and _KEYED.match(text, end - 1) and _MEANT.search(text, end):
            yield _Step(start, len(text), {})
            return
        for step in value if isinstance(value, list) else [value]:
            if isinstance(step, dict) and (_calls(step) or step.get("answer") is not None):
                yield _Step(start, end, step)


def _without_steps(text: str) -> Steps:
    """Prose is an answer, and so is JSON of other kinds; an object with a thought alone is none."""
    opening = _START.match(text)
    value = json_at(text, opening.end()) if opening else None
    found = value[0] if value else {}
    if not any(key in found for key in KEYS):
        return Steps(rest=text)
    thoughts = (found["thought"],) if isinstance(found.get("thought"), str) else ()
    return Steps(rest=text, thoughts=thoughts, answer="", notes=("a JSON object without a tool or an answer",))


def _adjacent(text: str, step: _Step, following: _Step) -> bool:
    return step.start == following.start or is_gap(text, step.end, following.start)


def _calls(step: Mapping[str, Any]) -> bool:
    return is_call(step) or bool(isinstance(step.get("tool"), str) and step["tool"])


def _as_calls(text: str, steps: Sequence[_Step]) -> Iterator[ToolCall]:
    position = 0
    for step in steps:
        yield as_call(step.value, text[max(step.start, position) : step.end])  # a list's text is kept once
        position = step.end


def _left_out(count: int) -> tuple[str, ...]:
    return (f"{count} objects besides the calls or the answer were left out",) if count else ()


def _as_text(answer: object) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
