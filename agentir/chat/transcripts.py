"""Transcripts of agents, read from OpenAI chat messages into trajectories.

Servers differ in where a model's reasoning stands: in `reasoning_content`, in `reasoning`, in a part of the content,
between `<think>` tags, or as plain text before a call. Agents that know no tool calls write them as text,
`<tool_call>{...}</tool_call>`, and read `<tool_response>` in the next user message (Tongyi-DeepResearch, WebDancer).
All of these are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from agentir.chat.written_calls import WrittenCalls, as_arguments, json_value, tagged_calls
from agentir.jsonl import Misfit, Rejects, as_id, iter_objects
from agentir.records import ToolCall, ToolResult, Trajectory, Turn

ThinkBlocks = Literal["last", "join"]
"""Which of several thoughts in one message is the reasoning; AgentIR takes the last (react_agent.py)."""
REASONING_KEYS = ("reasoning_content", "reasoning")
"""Where the reasoning stands in a message whose server splits it off."""
ID_KEYS = ("qid", "id", "query_id")
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_MARKUP = re.compile(
    "|".join(rf"<{tag}\s*>(?:(?!<{tag}\s*>).)*?</{tag}\s*>" for tag in ("tool_call", "function_call"))
    + r"|</?(?:tool_call|function_call|think(?:ing)?)\s*>",
    re.DOTALL | re.IGNORECASE,
)
_RESPONSE_BLOCK = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
_ANSWER_BLOCK = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)
_FAILURE = re.compile(
    r"""\s*(?:
      \[(?:failed|error)\b
    | (?:\[[\w\s]{1,30}\]\s*)?(?:
        (?:[\w.]+\s)?[\w.]*(?:error|exception)\s*(?:[:!]|\Z)
      | (?:[\w.]+\s)?error\s(?:for|in|on|while|when|during|executing|calling|code|occurred)\b
      | failed\s*(?:to\b|[:!.]|\Z)
      | invalid\s(?:request|arguments?|input|json|tool|query)\b
      | traceback\s\(most\srecent\scall)
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def thinking_spans(content: str, ends_before_call: bool = False) -> tuple[tuple[int, int], ...]:
    """Where the thoughts in a text begin and end, tags included.

    A closing tag without an opening one ends a thought that began where the text does (or where the thought before
    ended): chat templates put the opening tag into the prompt. A thought that is never closed runs to the end.

    Args:
        content: the text.
        ends_before_call: end a thought that is never closed before the tool call it holds: that call was meant.
    """
    spans: list[tuple[int, int]] = []
    start, end, opened = None, 0, 0
    for tag in _THINK_TAG.finditer(content):
        if tag[1]:
            spans.append((end if start is None else start, tag.end()))
            start, end = None, tag.end()
        else:
            start, opened = tag.start() if start is None else start, tag.end()
    if start is not None:
        call = content.find("<tool_call>", opened) if ends_before_call else -1
        spans.append((start, len(content) if call < 0 else call))
    return tuple(spans)


def ends_in_thought(content: str) -> bool:
    """Whether a text ends in a thought that is never closed."""
    tags = [tag[1] for tag in _THINK_TAG.finditer(content)]
    return bool(tags) and not tags[-1]


def split_thinking(content: str, ends_before_call: bool = False) -> tuple[tuple[str, ...], str]:
    """The thoughts in a text, in order, and what stands outside of them; see `thinking_spans`."""
    spans = thinking_spans(content, ends_before_call)
    thoughts = (_THINK_TAG.sub("", content[start:end]).strip() for start, end in spans)
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(content)]
    visible = "".join(content[end:start] for end, start in zip(ends, starts, strict=True))
    return tuple(thought for thought in thoughts if thought), visible.strip()


def after_thinking(content: str) -> str:
    """What follows the last closed thought, up to a thought that is never closed."""
    tail = content[max((tag.end() for tag in _THINK_TAG.finditer(content) if tag[1]), default=0) :]
    return split_thinking(tail)[1]


def clean_reasoning(text: str) -> str:
    """A reasoning without think tags (their text stays) and without tool calls that leaked into it.

    A tag of a tool call that lacks its counterpart is removed alone. Where something was removed, one space stays.
    """
    return " ".join(part for piece in _MARKUP.split(text) if (part := piece.strip()))


def tagged_answer(text: str) -> str | None:
    """What stands between the last `<answer>` tags, or else behind one that is never closed; None where there are none.

    A text that quotes such tags, as a page may hold them, does so before it gives its own answer.
    """
    if blocks := _ANSWER_BLOCK.findall(text):
        return str(blocks[-1]).strip()
    _, tag, rest = text.rpartition("<answer>")
    return rest.strip() if tag else None


def is_failure(content: str) -> bool:
    """Whether a tool's result says that the call failed.

    That is a JSON object with a true `error` or `isError`, with `success` false or with the status "error" or "failed";
    or a text that begins like a failure: "Error:", "TimeoutError:", "Search error for", "[Failed]", "Failed to",
    "[Search] Invalid request", "Traceback (most recent call last)". A result that found nothing is no failure.
    """
    value = json_value(content)
    if isinstance(value, dict):
        said = value.get("error") or value.get("isError") or value.get("status") in ("error", "failed")
        return bool(said) or value.get("success") is False
    return value is None and _FAILURE.match(content) is not None


def docids_in(content: str) -> tuple[str, ...]:
    """The ids of the documents in a tool's result, where it is JSON: objects with a `docid`, alone, listed, or in a
    list inside an object."""
    value = json_value(content)
    entries = (
        [value, *(inner for inner in value.values() if isinstance(inner, list))] if isinstance(value, dict) else [value]
    )
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    found = [one["docid"] for one in flat if isinstance(one, dict) and type(one.get("docid")) in (str, int)]
    return tuple(dict.fromkeys(str(docid) for docid in found))


@dataclass(slots=True)
class OpenTurn:
    """A turn whose results are still being collected.

    `thought` is the reasoning as the model wrote it, with any markup; `notes` say what had to be mended in its calls.
    """

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...]
    thought: str = ""
    notes: tuple[str, ...] = ()
    results: dict[int, ToolResult] = field(default_factory=dict)

    def waiting(self, call_id: str | None = None) -> list[int]:
        """Places of the calls (with this id) that have no result yet."""
        return [n for n, call in enumerate(self.calls) if n not in self.results and call_id in (None, call.call_id)]


def turns_from_messages(messages: Sequence[Any], think_blocks: ThinkBlocks = "last") -> tuple[Turn, ...]:
    """The turns of a conversation: each assistant message with the results of its calls, wherever they follow.

    Results are matched by `tool_call_id`; where ids repeat, the latest turn with such a call without a result gets it.
    Results without an id go to the calls of the latest turn, in order. A result has failed if its message has a true
    `is_error`, or if `is_failure` says so.

    Args:
        messages: OpenAI chat messages.
        think_blocks: which of several thoughts in one message is its reasoning.

    Raises:
        Misfit: a message does not fit; the text names it by its position.
    """
    turns: list[OpenTurn] = []
    for number, message in enumerate(messages):
        name = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role == "assistant":
            turns.append(assistant_turn(message, name, f"turn{len(turns)}.", think_blocks))
        elif role == "tool":
            content = message_text(message.get("content"), f"{name}.content")[0]
            _add_result(
                turns, message.get("tool_call_id"), content, bool(message.get("is_error")), f"{name}.tool_call_id"
            )
        elif role == "user":
            content = message_text(message.get("content"), f"{name}.content")[0]
            if content.lstrip().startswith("<tool_response>"):
                for block in _RESPONSE_BLOCK.findall(content):
                    _add_result(turns, None, block.strip(), False, name)
        elif role not in ("system", "developer"):
            found = role if isinstance(message, dict) else message
            raise Misfit(f"{name}.role", "system, developer, user, assistant or tool", found)
    return tuple(
        Turn(
            index=index,
            reasoning=turn.reasoning,
            text=turn.text,
            calls=turn.calls,
            results=tuple(turn.results[n] for n in sorted(turn.results)),
        )
        for index, turn in enumerate(turns)
    )


def _add_result(turns: Sequence[OpenTurn], call_id: Any, content: str, failed: bool, name: str) -> None:
    if call_id is None:
        turn = turns[-1] if turns else None
        position = next(iter(turn.waiting()), None) if turn else None
    else:
        turn = next((turn for turn in reversed(turns) if turn.waiting(call_id)), None)
        position = turn.waiting(call_id)[0] if turn else None
    if turn is None or position is None:
        raise Misfit(name, "the id of an earlier call without a result", call_id)
    turn.results[position] = ToolResult(
        call_id=turn.calls[position].call_id,
        content=content,
        docids=docids_in(content),
        error=failed or is_failure(content),
    )


def assistant_turn(message: Mapping[str, Any], name: str, prefix: str, think_blocks: ThinkBlocks) -> OpenTurn:
    """Reasoning, text and calls of an assistant's message.

    Args:
        message: in OpenAI's chat format.
        name: what an error calls it.
        prefix: begins the ids of calls that have none; their number in the message follows.
        think_blocks: which of several thoughts is the reasoning.

    Raises:
        Misfit: a part of the message does not fit.
    """
    content, thoughts_in_parts = message_text(message.get("content"), f"{name}.content")
    calls = tuple(_listed_calls(message.get("tool_calls"), f"{name}.tool_calls", prefix))
    thoughts_in_text, visible = split_thinking(content, ends_before_call=not calls)
    written = WrittenCalls((), visible) if calls else tagged_calls(visible)
    calls = calls or tuple(replace(call, call_id=f"{prefix}{number}") for number, call in enumerate(written.calls))
    fields = [message_text(message.get(key), f"{name}.{key}") for key in REASONING_KEYS]
    thoughts = [*thoughts_in_parts, *thoughts_in_text]
    thought = "\n".join(thoughts if think_blocks == "join" else thoughts[-1:])
    places = [*("\n".join((text, *parts)) for text, parts in fields), thought, written.text if calls else ""]
    shown = [place for place in places if place.strip()]
    thought = next((place for place in shown if clean_reasoning(place)), "".join(shown[:1]))
    return OpenTurn(
        reasoning=clean_reasoning(thought), text=written.text, calls=calls, thought=thought, notes=written.notes
    )


def message_text(value: Any, name: str) -> tuple[str, tuple[str, ...]]:
    """The text of a message's content and the thoughts among its parts; parts of other kinds (images) have none."""
    if value is None or isinstance(value, str):
        return value or "", ()
    if not isinstance(value, list) or not all(isinstance(part, str) or _is_part(part) for part in value):
        raise Misfit(name, "a text, null or a list of parts", value)
    texts: list[str] = []
    thoughts: list[str] = []
    for part in value:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") in ("thinking", "reasoning"):
            inner, nested = message_text(part.get("thinking", part.get("text")), name)
            thoughts.extend(text for text in (inner, *nested) if text)
        elif isinstance(text := part.get("text"), str):
            texts.append(text)
    return "\n".join(texts), tuple(thoughts)


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _listed_calls(value: Any, name: str, prefix: str) -> Iterator[ToolCall]:
    if value is None:
        return
    if not isinstance(value, list):
        raise Misfit(name, "a list of calls", value)
    for number, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Misfit(f"{name}[{number}]", "a call with function.name", call)
        given = function.get("arguments")
        raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        yield ToolCall(
            call_id=str(call["id"]) if call.get("id") is not None else f"{prefix}{number}",
            name=function["name"],
            arguments=as_arguments(json_value(raw)),
            raw_arguments=raw,
        )


def read_trajectories(path: str | Path, rejects: Rejects, think_blocks: ThinkBlocks = "last") -> list[Trajectory]:
    """Reads a JSON lines file (also `.gz`) with an episode a line.

    A line has the question's id (`qid`, `id` or `query_id`), `messages`, and optionally `agent` and `status`; other
    keys are left (an `answer` may be the agent's or the reference). The answer is the text of the last turn, if that
    made no call: what stands between `<answer>` tags, else all of it.

    Args:
        path: the file.
        rejects: takes the lines that do not fit, among them a second episode of a question.
        think_blocks: which of several thoughts in one message is its reasoning.
    """
    trajectories: list[Trajectory] = []
    lines: dict[str, int] = {}
    for line, row in iter_objects(path, rejects):
        try:
            trajectory = _trajectory(row, think_blocks)
        except Misfit as misfit:
            rejects.add(path, line, *misfit.args)
            continue
        if trajectory.qid in lines:
            expected = f"one episode a question (line {lines[trajectory.qid]} has one already)"
            rejects.add(path, line, "qid", expected, trajectory.qid)
            continue
        lines[trajectory.qid] = line
        trajectories.append(trajectory)
    return trajectories


def _trajectory(row: Mapping[str, Any], think_blocks: ThinkBlocks) -> Trajectory:
    key = next((key for key in ID_KEYS if row.get(key) is not None), ID_KEYS[0])
    if (qid := as_id(row.get(key))) is None:
        raise Misfit(key, "an id (a text or an integer)", row.get(key))
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise Misfit("messages", "a list of chat messages", messages)
    given = {name: row.get(name) for name in ("agent", "status")}
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise Misfit(name, "a text", value)
    turns = turns_from_messages(messages, think_blocks)
    said = turns[-1].text if turns and not turns[-1].calls else ""
    tagged = tagged_answer(said)
    answer = said if tagged is None else tagged
    return Trajectory(
        qid=qid, agent=given["agent"] or "unknown", turns=turns, answer=answer, status=given["status"] or "unknown"
    )
