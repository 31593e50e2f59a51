"""What a bench finds: rows of measured cases, and runs of two sides in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One measured case.

    Attributes:
        ratio: ours over the baseline, turned so that above 1 is better; None where there is no baseline.
        goal: in words; empty where the case is only shown.
        met: None where there is no goal.
    """

    bench: str
    case: str
    value: float
    unit: str
    baseline: str
    baseline_value: float | None
    ratio: float | None
    goal: str
    met: bool | None


def in_turn(ours: Callable[[], Any], baseline: Callable[[], Any], runs: int, name: str) -> list[tuple[float, float]]:
    """Seconds of ours and the baseline, run in turn after one uncounted pair."""
    pairs = []
    for number in tqdm(range(runs + 1), desc=name, unit="pair"):
        seconds = []
        for side in (ours, baseline):
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
        if number:
            pairs.append((seconds[0], seconds[1]))
    return pairs
