"""Systems compared over the same sub-queries: means, differences, intervals, and who wins which question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from agentir.errors import InputError
from agentir.measures.bootstrap import NUM_RESAMPLES, Interval, align, paired_bootstrap
from agentir.measures.query_values import QueryValues, check_same
from agentir.measures.slices import BUILT_IN

TIE = 1e-9
"""Differences up to this are none: rounding alone makes such ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of a report with its 95 % interval; `num` counts sub-queries. `system` is "A − B" for a difference."""

    system: str
    slice: str
    measure: str
    mean: float
    low: float
    high: float
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """On how many questions of a slice system `a` has the higher mean (wins), the lower (losses), or an equal one."""

    a: str
    b: str
    slice: str
    measure: str
    wins: int
    losses: int
    ties: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything a report shows of several systems.

    Attributes:
        rows: a row a measure, slice and system.
        differences: a row a measure, slice and pair.
        tallies: one a measure, slice and unordered pair of systems.
        slices: slice -> (number of sub-queries, number of questions).
        left_out: system -> its sub-queries that another system lacks.
    """

    rows: tuple[Row, ...]
    differences: tuple[Row, ...]
    tallies: tuple[Tally, ...]
    slices: Mapping[str, tuple[int, int]]
    left_out: Mapping[str, tuple[str, ...]]


def difference_name(a: str, b: str) -> str:
    """How the difference of two systems is called in reports."""
    return f"{a} − {b}"


def is_clear(difference: Row) -> bool:
    """Whether the interval of a difference leaves out 0."""
    return difference.low > TIE or difference.high < -TIE


def compare(
    systems: Mapping[str, Mapping[str, QueryValues]],
    measures: Sequence[str],
    differences: Sequence[tuple[str, str]],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compares systems on every slice and measure, over the sub-queries that all of them have.

    Args:
        systems: name -> evaluation.
        measures: names of values that every sub-query has.
        differences: pairs (A, B) whose difference A minus B is wanted.
        num_resamples: draws of the bootstrap.
        seed: of the draws.

    Raises:
        InputError: the systems share no sub-query, or disagree on what a sub-query is.
    """
    ids, left_out = align(systems)
    if not ids:
        raise InputError(
            f"no sub-query that all of {', '.join(systems)} have; were they evaluated on the same examples?"
        )
    check_same(systems, ids)
    reference = next(iter(systems.values()))
    members: dict[str, list[str]] = defaultdict(list)
    for subqid in ids:
        for name in reference[subqid].slices:
            members[name].append(subqid)
    members = {
        name: members[name] for name in sorted(members, key=_place)
    }  # built-in slices first, others as first seen
    clusters = {subqid: reference[subqid].qid for subqid in ids}
    rows, difference_rows, tallies = [], [], []
    for measure in measures:
        for slice_name, part in members.items():
            values = {
                name: {subqid: by_id[subqid].values[measure] for subqid in part} for name, by_id in systems.items()
            }
            result = paired_bootstrap(values, clusters, differences, num_resamples=num_resamples, seed=seed)
            rows += [_row(name, slice_name, measure, part, interval) for name, interval in result.systems.items()]
            difference_rows += [
                _row(difference_name(a, b), slice_name, measure, part, interval)
                for (a, b), interval in result.differences.items()
            ]
            tallies += list(_tallies(values, clusters, slice_name, measure))
    return Comparison(
        rows=tuple(rows),
        differences=tuple(difference_rows),
        tallies=tuple(tallies),
        slices={name: (len(part), len({clusters[subqid] for subqid in part})) for name, part in members.items()},
        left_out=left_out,
    )


def _place(slice_name: str) -> int:
    return BUILT_IN.index(slice_name) if slice_name in BUILT_IN else len(BUILT_IN)


def _row(system: str, slice_name: str, measure: str, part: Sequence[str], interval: Interval) -> Row:
    return Row(
        system=system,
        slice=slice_name,
        measure=measure,
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        num=len(part),
    )


def _tallies(
    values: Mapping[str, Mapping[str, float]], clusters: Mapping[str, str], slice_name: str, measure: str
) -> Iterator[Tally]:
    by_question = {name: _question_means(by_id, clusters) for name, by_id in values.items()}
    for a, b in combinations(values, 2):
        gains = [by_question[a][qid] - by_question[b][qid] for qid in by_question[a]]
        wins = sum(gain > TIE for gain in gains)
        losses = sum(gain < -TIE for gain in gains)
        ties = len(gains) - wins - losses
        yield Tally(a=a, b=b, slice=slice_name, measure=measure, wins=wins, losses=losses, ties=ties)


def _question_means(values: Mapping[str, float], clusters: Mapping[str, str]) -> dict[str, float]:
    by_question: dict[str, list[float]] = defaultdict(list)
    for subqid, value in values.items():
        by_question[clusters[subqid]].append(value)
    return {qid: sum(part) / len(part) for qid, part in by_question.items()}
