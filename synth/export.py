"""Writes whole trajectories as conversations to fine-tune a search agent on: what it said is trainable, nothing else.

    agentir synth export --trajectories runs/rollout --questions questions.jsonl --only-correct --out runs/sft

The trajectories are a folder that `agentir synth rollout` wrote, or OpenAI chat messages, one episode a line. Writes
sft.jsonl with qid, messages (role, content, reasoning_content, tool_calls, tool_call_id, trainable) and tools. Turns with
calls that could not be read, were not run or all failed, and turns with neither call nor answer, are shown, but not trained
on; turns that were cut are left out. The last message is the answer alone.
`agentir.drsynth.token_labels` turns a line into tokens and labels.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentir.artifacts import Artifact
from agentir.chat.transcripts import ThinkBlocks
from agentir.config import ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.sft import SftOptions, sft_rows
from agentir.drsynth.trajectories import load_trajectories
from agentir.errors import ConfigError
from agentir.jsonl import Rejects


class Config(ProgramConfig, SftOptions):
    """What is exported, and how."""

    trajectories: tuple[Path, ...]
    """Folders of `agentir synth rollout`, or files of episodes, JSON lines (also .gz) with qid, messages, and optionally
    agent, status and tools."""
    questions: Path | None = None
    """The questions with their accepted answers, JSON lines (also .gz); needed for only_correct."""
    think_blocks: ThinkBlocks = "last"
    """Which of several thoughts in one message of a file is the reasoning: the last, or all of them joined."""


def main(config: Config) -> None:
    """Reads the trajectories, makes conversations, and reports what was left out."""
    if config.only_correct and config.questions is None:
        raise ConfigError("questions: missing; only_correct compares the agents' answers with theirs")
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    questions = {item.qid: item for item in read_questions(config.questions, rejects)} if config.questions else {}
    trajectories = load_trajectories(config.trajectories, rejects, config.think_blocks)
    rejects.check()
    inputs = {f"trajectories[{n}]" if n else "trajectories": path for n, path in enumerate(config.trajectories)}
    if config.questions is not None:
        inputs["questions"] = config.questions
    with Artifact(config.out, "sft", config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        rows, counts = sft_rows(trajectories, questions, config)
        artifact.write("sft.jsonl", rows)
        by_status = Counter(trajectory.status for trajectory in trajectories)
        artifact.finish({**counts, "trajectories_by_status": dict(by_status)}, rejects)
    print(f"{len(rows)} conversations from {len(trajectories)} trajectories -> {config.out / 'sft.jsonl'}")
    print(f"  trajectories by status: {', '.join(f'{count} {status}' for status, count in by_status.items())}")
    for name, count in counts.items():
        if count and name not in ("trajectories", "rows"):
            print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  lines set aside: {len(rejects.items)}")
