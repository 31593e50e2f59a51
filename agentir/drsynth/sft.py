"""Whole trajectories as conversations to fine-tune an agent on: what the agent said is marked trainable, nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentir.chat.transcripts import clean_reasoning
from agentir.config import Section
from agentir.drsynth.trajectories import has_accepted_answer
from agentir.records import Message, QAItem, ToolCall, Trajectory, Turn


class SftOptions(Section):
    """Which trajectories become conversations, and what of them is trained on."""

    statuses: tuple[str, ...] = ("completed",)
    """Only trajectories that ended so: completed, forced (answered at a limit), incomplete; unknown where a transcript
    says nothing."""
    only_correct: bool = False
    """Only trajectories whose answer holds an accepted answer of the question."""
    train_on_failed_calls: bool = False
    """Whether turns of which every call was run and failed are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRow:
    """A conversation in OpenAI's chat format; each message says whether it is `trainable`, `tools` what was offered."""

    qid: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def sft_rows(
    trajectories: Iterable[Trajectory], questions: Mapping[str, QAItem], options: SftOptions
) -> tuple[list[SftRow], Counter[str]]:
    """Makes a conversation of each trajectory that is wanted.

    Turns that were cut or withheld are not in it: the agent was not shown them either. Turns that the loop had to answer
    with words of its own (a call that could not be read or was not run, neither call nor answer) are shown, but not
    trained on. Of an agent that was run the last message is the answer itself, without the markup of its dialect.

    Args:
        trajectories: what is exported.
        questions: by qid; needed for those that `only_correct` asks about, and where a trajectory has no prompt.
        options: which trajectories, and what of them.

    Returns:
        The conversations, and how many of everything there were and were left out.
    """
    rows: list[SftRow] = []
    counts: Counter[str] = Counter(
        dict.fromkeys(
            (
                "trajectories",
                "trajectories_of_other_status",
                "trajectories_of_unknown_questions",
                "trajectories_with_other_answer",
                "trajectories_without_prompt",
                "trajectories_without_trainable_turns",
                "turns",
                "trainable_turns",
                "cut_turns",
                "turns_with_unreadable_calls",
                "turns_with_calls_not_run",
                "turns_with_failed_calls_only",
                "turns_without_call_or_answer",
                "rows",
            ),
            0,
        )
    )
    for trajectory in trajectories:
        counts["trajectories"] += 1
        item = questions.get(trajectory.qid)
        prompt = trajectory.prompt or _prompt(trajectory.question or (item.question if item else ""))
        if (reason := _left_out(trajectory, item, prompt, options)) is not None:
            counts[reason] += 1
            continue
        turn_counts: Counter[str] = Counter()
        messages = [*map(_told, prompt), *_conversation(trajectory, options, turn_counts)]
        if not turn_counts["trainable_turns"]:
            counts["trajectories_without_trainable_turns"] += 1
            continue
        counts.update(turn_counts)
        rows.append(SftRow(qid=trajectory.qid, messages=messages, tools=[_tool(tool) for tool in trajectory.tools]))
    counts["rows"] = len(rows)
    return rows, counts


def _prompt(question: str) -> tuple[Message, ...]:
    return (Message(role="user", content=question),) if question else ()


def _left_out(
    trajectory: Trajectory, item: QAItem | None, prompt: tuple[Message, ...], options: SftOptions
) -> str | None:
    """What a trajectory that is not wanted is counted as."""
    if trajectory.status not in options.statuses:
        return "trajectories_of_other_status"
    if options.only_correct and item is None:
        return "trajectories_of_unknown_questions"
    if options.only_correct and item is not None and not has_accepted_answer(trajectory, item):
        return "trajectories_with_other_answer"
    return None if prompt else "trajectories_without_prompt"


def _conversation(trajectory: Trajectory, options: SftOptions, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """The messages after the prompt."""
    for turn in trajectory.turns:
        counts["turns"] += 1
        if turn.prompted:
            yield {"role": "user", "content": turn.prompted, "trainable": False}
        if turn.finish in ("length", "filtered"):
            counts["cut_turns"] += 1
            continue
        answer = _answer(turn, trajectory)
        reason = _not_trained(turn, answer, options)
        counts["trainable_turns" if reason is None else reason] += 1
        yield _said(turn, answer or turn.text, reason is None)
        for result in turn.results:
            yield {"role": "tool", "content": result.content, "tool_call_id": result.call_id, "trainable": False}


def _answer(turn: Turn, trajectory: Trajectory) -> str:
    """What a turn answered, empty where it did not; in a transcript any text may answer the user."""
    if turn.calls:
        return ""
    if not turn.finish:
        return turn.text if turn.text.strip() else ""
    return trajectory.answer if turn is trajectory.turns[-1] else ""


def _not_trained(turn: Turn, answer: str, options: SftOptions) -> str | None:
    """What a turn that is shown but not trained on is counted as."""
    if not turn.calls:
        return None if answer else "turns_without_call_or_answer"
    if any(call.arguments is None for call in turn.calls):
        return "turns_with_unreadable_calls"
    if any(not result.run for result in turn.results):
        return "turns_with_calls_not_run"
    failed = {result.call_id for result in turn.results if result.error}
    if not options.train_on_failed_calls and all(call.call_id in failed for call in turn.calls):
        return "turns_with_failed_calls_only"
    return None


def _told(message: Message) -> dict[str, Any]:
    """A message of the prompt; one that shows the agent what to do is the prompt's, and not trained on."""
    calls = {"tool_calls": [_call(call) for call in message.calls]} if message.calls else {}
    answered = {"tool_call_id": message.call_id} if message.role == "tool" else {}
    return {"role": message.role, "content": message.content, **calls, **answered, "trainable": False}


def _said(turn: Turn, content: str, trainable: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    # Plain text before a call is its reasoning, too; it is not said twice.
    if turn.reasoning and turn.reasoning != clean_reasoning(content):
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_call(call) for call in turn.calls]
    return message | {"trainable": trainable}


def _call(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's format; arguments stay text, since tables would give every row the union of all keys."""
    given = call.raw_arguments if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": given}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
