"""Training the small embedder against the cached loss of sentence-transformers, and its memory at a large batch.

Each side trains in a process of its own (ours sets the C library up in its own way), one step after the other in turn,
on the same batches: reasonings and queries of the sample with their positives and hard negatives, all encoded by the
model that is trained. A step holds all that it needs, the making of its batch included.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir import sample
from agentir.benches.rows import BenchRow
from agentir.config import Field, Section
from agentir.errors import AgentirError, MissingExtraError

if TYPE_CHECKING:
    from agentir.benches.train_sides import Training

GOAL_RATIO, GOAL_LOSS, GOAL_GRADIENT, GOAL_MEMORY = 1.5, 1e-4, 1e-3, 1.15
LOSS_BATCH = 4
"""Rows of the batch whose loss is compared."""
MEMORY_MINI_BATCH = 8
"""Of both batches whose memory is compared."""
GRACE = 10.0
"""Seconds for a process to end by itself when nothing more is asked."""
SHOWN = 2000
"""Characters of what a process said before it failed."""


class TrainSection(Section):
    """What is trained."""

    batch_size: int = Field(default=32, ge=2)
    """Rows a batch."""
    num_negatives: int = Field(default=3, ge=1, le=7)
    """Hard negatives a row, beside one positive."""
    mini_batch_sizes: tuple[int, ...] = Field(default=(32,), min_length=1)
    """Texts that are encoded at once, each size a case of its own; 32 is the baseline's default."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Of both sides; auto is bf16 where the processor computes it."""
    memory_batch_sizes: tuple[int, int] = (8, 256)
    """Rows of the two batches whose memory is compared, with one negative each."""


def bench_train(runs: int, load: TrainSection | None = None) -> list[BenchRow]:
    """Examples a second on both sides, whether both compute the same loss, and peak memory at a large batch."""
    load = load or TrainSection()
    forkserver.set_forkserver_preload(["agentir.benches.train_sides"])
    forkserver.ensure_running()  # loads what the processes need while the examples are made
    try:
        from agentir.benches.train_sides import Training, best_precision, compare_losses, peak_megabytes, take_turns
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "sentence-transformers", "train") from None

    with tempfile.TemporaryDirectory(prefix="agentir-bench-") as scratch:
        folder = Path(scratch)
        whole = Training(
            examples=_make_examples(folder),
            num_rows=load.batch_size * (runs + 1),
            batch_size=load.batch_size,
            num_negatives=load.num_negatives,
            mini_batch_size=load.mini_batch_sizes[0],
            precision=best_precision() if load.precision == "auto" else load.precision,
        )
        trainings = [replace(whole, mini_batch_size=size) for size in load.mini_batch_sizes]
        with (
            _Child(folder / "ours.txt", take_turns, "ours", trainings) as ours,
            _Child(folder / "baseline.txt", take_turns, "baseline", trainings) as baseline,
            tqdm(total=len(trainings) * (runs + 1), unit="pair") as bar,
        ):
            speeds = [_speed_row(training, _pairs(ours, baseline, runs, bar)) for training in trainings]
        first = replace(whole, num_rows=LOSS_BATCH, batch_size=LOSS_BATCH, precision="float32")
        with _Child(folder / "losses.txt", compare_losses, first) as child:
            losses = child.ask()
        small_size, large_size = load.memory_batch_sizes
        large = replace(
            whole,
            num_rows=large_size,
            batch_size=large_size,
            num_negatives=1,
            mini_batch_size=MEMORY_MINI_BATCH,
        )
        small = replace(large, batch_size=small_size)
        peaks = []
        for training in (small, large):
            with _Child(folder / "memory.txt", peak_megabytes, training) as child:
                peaks.append(child.ask())
    return [*speeds, *_loss_rows(*losses), _memory_row(small, large, *peaks)]


class _Child:
    """A process that answers each question over a connection; what it prints goes to a file."""

    def __init__(self, errors: Path, function: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self._errors = errors
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(errors, function, theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self) -> Any:
        """The next answer.

        Raises:
            AgentirError: the process ended before it answered.
        """
        try:
            self._connection.send(None)
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            said = self._errors.read_text(errors="replace")[-SHOWN:]
            raise AgentirError(f"a process of the bench ended early ({self._process.exitcode}):\n{said}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join(GRACE if kind is None else 0)
        self._process.terminate()
        self._process.join()


def _work(errors: Path, function: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    with open(errors, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    function(connection, *arguments)


def _pairs(ours: _Child, baseline: _Child, runs: int, bar: tqdm[Any]) -> list[tuple[float, float]]:
    """Seconds of each step of both sides but the first, which holds what comes before it."""
    pairs = []
    for _ in range(runs + 1):
        pairs.append((ours.ask(), baseline.ask()))
        bar.update()
    return pairs[1:]


def _make_examples(folder: Path) -> Path:
    """Makes training examples of the sample data, as users do."""
    questions = ("--questions", str(sample.path("questions")))
    subqueries, rankings, examples = (str(folder / name) for name in ("subqueries", "rankings", "examples"))
    trajectories, answers, corpus = (str(sample.path(name)) for name in ("trajectories", "oracle_answers", "corpus"))
    for stage in (
        ("extract", "--trajectories", trajectories, *questions, "--out", subqueries),
        ("label", "--subqueries", subqueries, "--answers", answers, *questions, "--out", rankings),
        ("build", "--rankings", rankings, *questions, "--corpus", corpus, "--out", examples),
    ):
        command = [sys.executable, "-m", "agentir", "synth", *stage]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise AgentirError(f"agentir synth {stage[0]} failed:\n{ended.stderr[-SHOWN:]}")
    return Path(examples) / "train.jsonl"


def _speed_row(training: Training, pairs: Sequence[tuple[float, float]]) -> BenchRow:
    ours, theirs = (median(training.batch_size / pair[side] for pair in pairs) for side in (0, 1))
    ratio = median(baseline / own for own, baseline in pairs)
    return BenchRow(
        bench="train",
        case=f"batch {training.batch_size}, 1 + {training.num_negatives} documents a row, "
        f"mini-batch {training.mini_batch_size}",
        value=ours,
        unit="examples/s",
        baseline="CachedMultipleNegativesRankingLoss of sentence-transformers in its trainer; the same batches, limits "
        f"and precision ({training.precision})",
        baseline_value=theirs,
        ratio=ratio,
        goal=f"ratio >= {GOAL_RATIO}",
        met=ratio >= GOAL_RATIO,
    )


def _loss_rows(ours: float, baseline: float, difference: float) -> list[BenchRow]:
    return [
        BenchRow(
            bench="train",
            case=f"loss of a batch of {LOSS_BATCH}, no dropout, float32",
            value=ours,
            unit="loss",
            baseline="CachedMultipleNegativesRankingLoss",
            baseline_value=baseline,
            ratio=None,
            goal=f"difference <= {GOAL_LOSS:g}",
            met=abs(ours - baseline) <= GOAL_LOSS,
        ),
        BenchRow(
            bench="train",
            case="its gradient's relative difference",
            value=difference,
            unit="norm/norm",
            baseline="CachedMultipleNegativesRankingLoss",
            baseline_value=None,
            ratio=None,
            goal=f"value <= {GOAL_GRADIENT:g}",
            met=difference <= GOAL_GRADIENT,
        ),
    ]


def _memory_row(small: Training, large: Training, small_peak: float, large_peak: float) -> BenchRow:
    return BenchRow(
        bench="train",
        case=f"peak memory, batch {large.batch_size}, mini-batch {large.mini_batch_size}",
        value=large_peak,
        unit="MB",
        baseline=f"the whole process at batch {small.batch_size}, of the rows with the longest documents",
        baseline_value=small_peak,
        ratio=small_peak / large_peak,
        goal=f"value <= {GOAL_MEMORY} x the baseline",
        met=large_peak <= GOAL_MEMORY * small_peak,
    )
