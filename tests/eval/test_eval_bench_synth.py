"""The bench of live rollouts and labels, end to end at a tiny size; what it measures is not judged here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentir.benches.endpoint import Call
from agentir.benches.synth import Load, bench_synth, steady_rate
from agentir.errors import AgentirError

TINY = Load(
    latency=0.05, num_at_once=8, num_questions=32, num_turns=4, num_documents=60, depth=5, num_finished=20
)  # fmt: skip


def test_each_case_is_measured() -> None:
    rows = bench_synth(1, TINY)
    assert [(row.case, row.unit, row.goal) for row in rows] == [
        ("rollout, 8 at once, 0.05 s a call", "calls/s", "ratio >= 0.95"),
        ("rollout, peak memory", "MB", "value < 500"),
        ("rollout, CPU a call, index of 60 documents", "ms/call", "value < 4"),
        ("rollout, CPU a call, index of the whole sample corpus, one run", "ms/call", ""),
        ("label, 8 at once, 0.05 s a call", "calls/s", "ratio >= 0.95"),
        ("label, peak memory", "MB", "value < 500"),
        ("label, CPU a call, making the lists not counted", "ms/call", "value < 4"),
        ("label, CPU a call, making the lists counted", "ms/call", ""),
        ("resume over 20 episodes, from the command to the first call", "s", "value < 2"),
        ("resume over 20 episodes, opening the store", "s", ""),
    ]
    assert all(row.bench == "synth" and row.value > 0 for row in rows)
    assert all((row.met is None) == (row.goal == "") for row in rows)
    speeds = [row for row in rows if row.unit == "calls/s"]
    assert all(row.baseline_value == 160 and row.ratio == row.value / 160 for row in speeds)
    assert {row.case for row in rows if row.ratio is None} == {
        row.case for row in rows if row.unit in ("MB", "ms/call") or "first call" in row.case
    }


def test_the_steady_state_leaves_out_start_and_end() -> None:
    calls = [Call(begins=True, arrived=second / 2, answered=second / 2 + 1) for second in range(20)]
    calls += [Call(begins=False, arrived=9.6, answered=10.6), Call(begins=False, arrived=3.0)]
    assert steady_rate(calls, latency=1.0) == 2.0
    with pytest.raises(AgentirError, match="more than two rounds"):
        steady_rate(calls[:3], latency=1.0)


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from agentir.cli import load_program; import agentir.benches.synth; load_program('eval', 'bench'); "
        "assert not {'torch', 'faiss', 'sentence_transformers'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
