"""Speed against named baselines on this machine, now.

    agentir eval bench encode --out encode.json
    agentir eval bench dense --out dense.json
    agentir eval bench synth --out synth.json
    agentir eval bench train --out train.json

Shown are medians; a ratio above 1 means that ours is better. Where there is a baseline program, ours and it run in turn, so
that a machine whose speed drifts slows both, and the ratio is the median of the pairs. Benches:

    encode   documents a second of the small embedder (OpenVINO) against SentenceTransformer.encode with its defaults
    dense    opening an index of 100,000 x 384 vectors, and exact top-10 search against a bare FAISS flat index
    synth    rollouts and labels from a model that answers after 2 s, 256 at once: calls a second against the most that is
             possible (256 / 2 s), memory and processor time of the program; and how soon a stopped rollout goes on
    train    examples a second of the small embedder in joint training against the cached loss of sentence-transformers,
             in the same batches; whether both losses are the same; and peak memory at a large batch
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, Literal

from agentir.artifacts import write_text_atomically
from agentir.benches.rows import BenchRow
from agentir.benches.train import TrainSection, bench_train
from agentir.config import Field, Section


class Config(Section):
    """Which bench, and how often."""

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Literal["encode", "dense", "synth", "train"]
    """encode, dense, synth or train."""
    runs: int = Field(5, ge=5)
    """Runs (pairs of runs where there is a baseline program, after one that is not counted)."""
    threads: int = Field(1, ge=1)
    """Threads of both sides of the dense bench."""
    train: TrainSection = TrainSection()
    """What both sides of the train bench train."""
    out: Path | None = None
    """A file for the rows, as JSON."""


def main(config: Config) -> None:
    """Measures, prints the table, and writes the rows if asked to."""
    rows = measure(config)
    print_rows(rows)
    if config.out is not None:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(config.out, json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        print(f"rows: {config.out}")


def measure(config: Config) -> list[BenchRow]:
    """Runs the bench; each loads only what it measures."""
    if config.name == "encode":
        from agentir.benches.encode import bench_encode

        return bench_encode(config.runs)
    if config.name == "dense":
        from agentir.benches.dense import bench_dense

        return bench_dense(config.runs, config.threads)
    if config.name == "train":
        return bench_train(config.runs, config.train)
    from agentir.benches.synth import bench_synth

    return bench_synth(config.runs)


def print_rows(rows: Sequence[BenchRow]) -> None:
    """The rows as a table."""
    width = max(len("case"), *(len(row.case) for row in rows)) + 2
    print(f"{'case':<{width}}{'ours':>12}{'baseline':>12}  {'unit':<12}{'ratio':>7}  {'goal':<32}met")
    for row in rows:
        baseline = "" if row.baseline_value is None else f"{row.baseline_value:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        met = {True: "yes", False: "NO", None: ""}[row.met]
        print(
            f"{row.case:<{width}}{row.value:>12.5g}{baseline:>12}  {row.unit:<12}{ratio:>7}  {row.goal:<32}{met}".rstrip()
        )
    for name in dict.fromkeys(row.baseline for row in rows if row.baseline != "none"):
        print(f"baseline: {name}")
