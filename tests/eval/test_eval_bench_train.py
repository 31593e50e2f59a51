"""The bench of training, end to end at a tiny size; speed and memory are not judged here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentir.benches.train import TrainSection, bench_train
from agentir.errors import AgentirError

TINY = TrainSection(batch_size=2, num_negatives=1, mini_batch_sizes=(2,), memory_batch_sizes=(2, 4))


def test_each_case_is_measured() -> None:
    rows = bench_train(1, TINY)
    assert [(row.case, row.unit, row.goal) for row in rows] == [
        ("batch 2, 1 + 1 documents a row, mini-batch 2", "examples/s", "ratio >= 1.5"),
        ("loss of a batch of 4, no dropout, float32", "loss", "difference <= 0.0001"),
        ("its gradient's relative difference", "norm/norm", "value <= 0.001"),
        ("peak memory, batch 4, mini-batch 8", "MB", "value <= 1.15 x the baseline"),
    ]
    speed, loss, gradient, memory = rows
    assert speed.value > 0 and speed.baseline_value and speed.ratio
    assert loss.value > 0 and gradient.value > 0 and loss.met and gradient.met
    assert memory.value > 100 and memory.baseline_value is not None and memory.baseline_value > 100


def test_more_rows_than_the_sample_has_are_refused() -> None:
    with pytest.raises(AgentirError, match="share no documents, expected 2000; measure fewer runs"):
        bench_train(1, TINY.model_copy(update={"batch_size": 1000}))


def test_nothing_heavy_is_loaded_before_it_is_measured() -> None:
    code = (
        "import sys; from agentir.cli import load_program; load_program('eval', 'bench'); "
        "assert not {'torch', 'sentence_transformers'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
