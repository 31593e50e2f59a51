"""Tool calls that leaked into a model's reasoning, where its server's parsers took them for thoughts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from agentir.chat.transcripts import OpenTurn, clean_reasoning
from agentir.chat.written_calls import WrittenCalls, tagged_calls
from agentir.records import ToolCall


def with_leaked_calls(turn: OpenTurn) -> OpenTurn:
    """The turn with the calls in its thought added to its own, and taken out of its reasoning."""
    leaked = tagged_calls(turn.thought)
    if not (found := readable(leaked)):
        return turn
    added = without_known(found, turn.calls)
    notes = (*turn.notes, f"{len(found)} tool calls leaked into the reasoning, {len(added)} of them made nowhere else")
    return replace(
        turn, reasoning=clean_reasoning(leaked.text), calls=(*turn.calls, *added), notes=(*notes, *leaked.notes)
    )


def readable(written: WrittenCalls) -> tuple[ToolCall, ...]:
    """The calls with arguments: in a thought, anything else may be a mention only."""
    return tuple(call for call in written.calls if call.arguments is not None)


def without_known(calls: Sequence[ToolCall], known: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls whose name and arguments are not those of a known call, nor of one before."""
    seen = {_key(call) for call in known}
    new: list[ToolCall] = []
    for call in calls:
        if (key := _key(call)) not in seen:
            seen.add(key)
            new.append(call)
    return tuple(new)


def _key(call: ToolCall) -> tuple[str, str]:
    return call.name, json.dumps(call.arguments, sort_keys=True)
