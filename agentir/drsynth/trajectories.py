"""Trajectories from wherever they are: the artifact of a rollout, or files of transcripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentir.artifacts import read_manifest
from agentir.chat.transcripts import ThinkBlocks, message_text, read_trajectories
from agentir.errors import InputError
from agentir.jsonl import Rejects, iter_objects, read_records
from agentir.measures.slices import contains
from agentir.records import Message, QAItem, Trajectory

TRAJECTORIES = "trajectories.jsonl"


def load_trajectories(paths: Sequence[Path], rejects: Rejects, think_blocks: ThinkBlocks = "last") -> list[Trajectory]:
    """The episodes of all places; a question has one, because a sub-query is known by question and turn.

    Args:
        paths: folders that `agentir synth rollout` wrote, and files of OpenAI chat messages, JSON lines (also `.gz`).
        rejects: takes the lines of files that do not fit.
        think_blocks: which of several thoughts in one message of a file is its reasoning.

    Raises:
        ArtifactError: a folder is no finished artifact of trajectories.
        InputError: a question has several episodes.
    """
    places: dict[str, Path] = {}
    trajectories: list[Trajectory] = []
    for path in paths:
        for trajectory in _read_artifact(path) if path.is_dir() else _read_transcripts(path, rejects, think_blocks):
            if (first := places.get(trajectory.qid)) is not None:
                raise InputError(
                    f"{path}: expected episodes of other questions than {first}, found {trajectory.qid!r} again; "
                    "read several episodes of a question into several artifacts"
                )
            places[trajectory.qid] = path
            trajectories.append(trajectory)
    return trajectories


def has_accepted_answer(trajectory: Trajectory, item: QAItem) -> bool:
    """Whether the words of an accepted answer occur in the agent's answer, whatever their case, width or punctuation."""
    return any(contains(trajectory.answer, accepted) for accepted in item.answers)


def _read_artifact(folder: Path) -> Iterator[Trajectory]:
    read_manifest(folder, "trajectories")
    return read_records(folder / TRAJECTORIES, Trajectory)


def _read_transcripts(path: Path, rejects: Rejects, think_blocks: ThinkBlocks) -> Iterator[Trajectory]:
    """The episodes of a file, with what the agent was told and offered."""
    trajectories = read_trajectories(path, rejects, think_blocks)
    refused = {item.line for item in rejects.items if item.file == str(path)}
    rows = (row for line, row in iter_objects(path, Rejects()) if line not in refused)
    for trajectory, row in zip(trajectories, rows, strict=True):
        yield _with_prompts(trajectory, row["messages"], row.get("tools"))


def _with_prompts(trajectory: Trajectory, messages: Sequence[Any], tools: Any) -> Trajectory:
    told: list[list[Message]] = [[]]
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            told.append([])
        elif message["role"] != "tool":
            content = message_text(message.get("content"), f"messages[{number}].content")[0]
            if not content.lstrip().startswith("<tool_response>"):  # results, which the turns hold
                told[-1].append(Message(role="user" if message["role"] == "user" else "system", content=content))
    turns = (
        replace(turn, prompted="\n\n".join(message.content for message in before))
        for turn, before in zip(trajectory.turns[1:], told[1:], strict=False)
    )
    return replace(
        trajectory,
        turns=(*trajectory.turns[:1], *turns),
        prompt=tuple(told[0]),
        tools=tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else (),
    )
