"""The data card of training examples: what they are and how they were made, in Markdown, from what the manifest holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from agentir import __version__
from agentir.drsynth.splits import SPLITS

CARD = "CARD.md"
_PROGRAMS = {
    "index": "index build",
    "trajectories": "synth rollout",
    "subqueries": "synth extract",
    "rankings": "synth label",
    "examples": "synth build",
}
_HEAD = """\
# Training examples for a retriever that reads an agent's reasoning

Each example is a search of an agent: its query with the reasoning that led to it, documents that an oracle, who knows the \
answer to the agent's question, ranked first (positives), and documents that it ranked last (hard negatives). Questions are \
divided into training, development and held-out questions that share no gold document. No negative is a gold document of \
its own question or of a development or held-out question, or has the text of one of these or of a positive.

Licence: as the sources'. The texts are those of the corpus, the questions and the agent's model; whoever passes them on \
needs the right to do so.
"""


def data_card(
    config: Mapping[str, Any],
    inputs: Mapping[str, Mapping[str, str]],
    upstream: Mapping[str, Mapping[str, Any]],
    report: Mapping[str, Any],
    num_set_aside: int,
) -> str:
    """Writes the card; the same examples made in the same way give the same text, wherever their files lie.

    Args:
        config: every option that decides what is made.
        inputs: name -> path and fingerprint.
        upstream: how the inputs were made, and theirs, see `agentir.artifacts.Artifact.upstream`.
        report: the counts of the artifact, those of each side under its name.
        num_set_aside: faults of input lines that were set aside.
    """
    counts = {name: value for name, value in report.items() if name not in SPLITS}
    sides = [report[split] for split in SPLITS]
    rows = [[name, *(_shown(side[name]) for side in sides)] for name in sides[0]]
    last = {"kind": "examples", "agentir_version": __version__, "config": config, "inputs": inputs}
    parts = [
        _HEAD,
        "## How they were made\n",
        *(_step(made) for made in [*_first_to_last(upstream), last]),
        "## What was used and left out\n",
        _table(
            ["count", "value"],
            [
                *([name, _shown(value)] for name, value in counts.items()),
                ["faults of input lines set aside", str(num_set_aside)],
            ],
        ),
        "## The examples\n",
        "Leaks are the share of examples whose query or reasoning holds the answer. Agreement is that of several votes of "
        "the oracle, from -1 to 1; the ranked share is how much of its list it ranked.\n",
        _table(["", *SPLITS], rows),
    ]
    return "\n".join(parts)


def _first_to_last(upstream: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All that was made on the way, each once, after what it was made of."""
    steps: list[Mapping[str, Any]] = []
    for made in upstream.values():
        steps += [step for step in (*_first_to_last(made["upstream"]), made) if step not in steps]
    return steps


def _step(made: Mapping[str, Any]) -> str:
    """One artifact: which program made it, under which options, of what."""
    kind = made["kind"]
    by = f", by `agentir {_PROGRAMS[kind]}`" if kind in _PROGRAMS else ""
    options = [[name, _literal(value)] for name, value in made["config"].items()]
    rows = [[name, PurePath(entry["path"]).name, f"`{entry['fingerprint']}`"] for name, entry in made["inputs"].items()]
    head = f"### {kind.capitalize()}{by}, version {made['agentir_version']}\n"
    return "\n".join([head, _table(["option", "value"], options), _table(["input", "name", "SHA-256"], rows)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _literal(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _shown(value: Any) -> str:
    """A value of a report in one cell; of a list its length."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        return str(len(value))
    return "not known" if value is None else str(value)
