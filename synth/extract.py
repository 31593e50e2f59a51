"""Takes the searches out of agents' trajectories: each becomes a sub-query with the reasoning that led to it.

    agentir synth extract --trajectories runs.jsonl --questions questions.jsonl --out data/subqueries

The trajectories are a folder that `agentir synth rollout` wrote, or OpenAI chat messages, one episode a line with the id of
its question. Writes subqueries.jsonl.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentir.artifacts import Artifact
from agentir.chat.transcripts import ThinkBlocks
from agentir.config import ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.extraction import ExtractionOptions, extract
from agentir.drsynth.trajectories import has_accepted_answer, load_trajectories
from agentir.jsonl import Rejects


class Config(ProgramConfig, ExtractionOptions):
    """What is extracted, and how."""

    trajectories: tuple[Path, ...]
    """Folders of `agentir synth rollout`, or files of episodes, JSON lines (also .gz) with qid, messages, and optionally
    agent and status."""
    questions: Path
    """The questions of the episodes, JSON lines or one JSON array (also .gz): qid, question, answer, gold_docids; or as
    WebShaper, MuSiQue, HotpotQA and 2WikiMultihopQA are published."""
    think_blocks: ThinkBlocks = "last"
    """Which of several thoughts in one message is the reasoning: the last (AgentIR's way), or all of them joined."""


def main(config: Config) -> None:
    """Reads questions and trajectories, extracts, and reports what was left out."""
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    questions = {item.qid: item for item in read_questions(config.questions, rejects)}
    trajectories = load_trajectories(config.trajectories, rejects, config.think_blocks)
    rejects.check()
    inputs = {f"trajectories[{n}]" if n else "trajectories": path for n, path in enumerate(config.trajectories)}
    with Artifact(config.out, "subqueries", config, inputs={**inputs, "questions": config.questions}) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        subqueries, counts = extract(trajectories, questions, config)
        artifact.write("subqueries.jsonl", subqueries)
        report = {
            **counts,
            "questions": len(questions),
            "questions_without_gold": sum(
                not (item.gold_docids or item.gold_titles or item.gold_urls) for item in questions.values()
            ),
            "questions_without_answer": sum(not item.answers for item in questions.values()),
            "trajectories_with_matching_answer": sum(
                trajectory.qid in questions and has_accepted_answer(trajectory, questions[trajectory.qid])
                for trajectory in trajectories
            ),
            "trajectories_by_status": dict(Counter(trajectory.status for trajectory in trajectories)),
        }
        artifact.finish(report, rejects)
    print(f"{len(subqueries)} sub-queries from {len(trajectories)} trajectories -> {config.out}")
    for name, count in report.items():
        if isinstance(count, int) and count and name not in ("subqueries", "trajectories", "questions"):
            print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  lines set aside: {len(rejects.items)}")
