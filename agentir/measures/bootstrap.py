"""Intervals by the paired bootstrap over questions.

The sub-queries of one question are not independent, so whole questions are drawn (a cluster bootstrap). Every system sees
the same draws: that makes the intervals of differences paired, and much narrower than those of the means suggest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentir.errors import InputError

NUM_RESAMPLES = 10_000
LEVEL = 0.95
_BLOCK = 2_000_000
"""Draws held in memory at once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its percentile interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Means and intervals over the sub-queries that every system has.

    Attributes:
        systems: system -> interval of its mean.
        differences: (A, B) -> interval of the mean of A minus B.
        ids: the sub-queries all systems have; everything is computed on these.
        unpaired: system -> its sub-queries that another system lacks, left out.
        num_clusters: number of questions drawn from.
    """

    systems: Mapping[str, Interval]
    differences: Mapping[tuple[str, str], Interval]
    ids: tuple[str, ...]
    unpaired: Mapping[str, tuple[str, ...]]
    num_clusters: int


def align(values: Mapping[str, Mapping[str, object]]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The ids that all systems have, in the first one's order, and for each system the ids that another lacks."""
    shared = set.intersection(*(set(by_id) for by_id in values.values()))
    ids = tuple(id_ for id_ in next(iter(values.values())) if id_ in shared)
    return ids, {name: tuple(id_ for id_ in by_id if id_ not in shared) for name, by_id in values.items()}


def paired_bootstrap(
    values: Mapping[str, Mapping[str, float]],
    clusters: Mapping[str, str],
    differences: Sequence[tuple[str, str]] = (),
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Bootstrap:
    """95 % percentile intervals of the mean of each system and of differences between pairs.

    A resample draws as many questions as there are, with replacement; its mean is the sum of the values of the drawn
    questions' sub-queries over the number of those sub-queries.

    Args:
        values: system -> sub-query id -> value; aligned by id, never by position.
        clusters: sub-query id -> question id.
        differences: pairs (A, B) of systems.
        num_resamples: number of draws.
        seed: of the draws; equal input and seed give equal numbers.

    Raises:
        InputError: no system, no sub-query that all systems have, or a pair names an unknown system.
    """
    if not values:
        raise InputError("bootstrap: expected the values of at least one system, found none")
    for name in {name for pair in differences for name in pair} - set(values):
        raise InputError(f"bootstrap: difference with unknown system {name!r}; known: {', '.join(values)}")
    ids, unpaired = align(values)
    if not ids:
        raise InputError(
            f"bootstrap: no sub-query that all of {', '.join(values)} have; were they run on the same set?"
        )
    table = np.array([[by_id[id_] for id_ in ids] for by_id in values.values()], dtype=np.float64)
    names, cluster_of = np.unique([clusters[id_] for id_ in ids], return_inverse=True)
    sizes = np.bincount(cluster_of).astype(np.float64)
    sums = np.array([np.bincount(cluster_of, weights=row) for row in table], dtype=np.float64)
    drawn = _resampled_means(sums, sizes, num_resamples, seed)
    means = dict(zip(values, table.mean(axis=1), strict=True))
    by_system = dict(zip(values, drawn, strict=True))
    return Bootstrap(
        systems={name: _interval(means[name], by_system[name]) for name in values},
        differences={(a, b): _interval(means[a] - means[b], by_system[a] - by_system[b]) for a, b in differences},
        ids=ids,
        unpaired=unpaired,
        num_clusters=len(names),
    )


def _resampled_means(
    sums: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], num_resamples: int, seed: int
) -> npt.NDArray[np.float64]:
    """Means of resamples, shape (systems, resamples), from the sums (systems, clusters) and sizes (clusters)."""
    rng = np.random.default_rng(seed)
    num_clusters = len(sizes)
    means = np.empty((len(sums), num_resamples))
    step = max(1, _BLOCK // num_clusters)
    for start in range(0, num_resamples, step):
        rows = min(step, num_resamples - start)
        draws = rng.integers(num_clusters, size=(rows, num_clusters))
        draws += np.arange(rows)[:, None] * num_clusters
        counts = np.bincount(draws.ravel(), minlength=rows * num_clusters).reshape(rows, num_clusters)
        weights = counts.astype(np.float64)
        means[:, start : start + rows] = sums @ weights.T / (weights @ sizes)
    return means


def _interval(mean: float, drawn: npt.NDArray[np.float64]) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(float(mean), float(low), float(high))
