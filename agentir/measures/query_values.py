"""Values of one evaluation, a sub-query at a time: the lines of `per_query.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentir.errors import InputError
from agentir.jsonl import Rejects, read_records
from agentir.measures.bootstrap import align
from agentir.records import STRICT

FILE = "per_query.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryValues:
    """What was measured for a sub-query of the question `qid`, and the slices it belongs to."""

    __pydantic_config__ = STRICT

    subqid: str
    qid: str
    slices: tuple[str, ...]
    num_relevant: int
    values: dict[str, float]


def read_query_values(
    folder: str | Path, measures: Sequence[str], rejects: Rejects | None = None
) -> dict[str, QueryValues]:
    """The values in an evaluation folder, by sub-query id.

    Args:
        folder: the evaluation.
        measures: names of values that every sub-query must have.
        rejects: where lines that do not fit go; without it they raise.

    Raises:
        InputError: a line does not fit, repeats a sub-query, or lacks one of the measures.
    """
    path = Path(folder) / FILE
    by_id: dict[str, QueryValues] = {}
    for item in read_records(path, QueryValues, rejects):
        if item.subqid in by_id:
            raise InputError(f"{path}: subqid {item.subqid!r}: expected each sub-query once, found it twice")
        if missing := [measure for measure in measures if measure not in item.values]:
            raise InputError(
                f"{path}: subqid {item.subqid!r}: expected a value of {missing[0]}, found {', '.join(item.values)}; "
                "evaluate again with this measure, or leave it out of the report"
            )
        by_id[item.subqid] = item
    if not by_id:
        raise InputError(f"{path}: expected values of at least one sub-query, found none")
    return by_id


def mean_over_seeds(
    seeds: Mapping[str, Mapping[str, QueryValues]], measures: Sequence[str]
) -> tuple[dict[str, QueryValues], dict[str, tuple[str, ...]]]:
    """One evaluation whose values are the means over several, and for each of them the sub-queries that another lacks.

    Args:
        seeds: label -> evaluation, at least one.
        measures: which values to keep.

    Raises:
        InputError: two evaluations disagree on what a sub-query is (see `check_same`).
    """
    ids, unpaired = align(seeds)
    check_same(seeds, ids)
    first = next(iter(seeds.values()))
    means = {
        subqid: QueryValues(
            subqid=subqid,
            qid=first[subqid].qid,
            slices=first[subqid].slices,
            num_relevant=first[subqid].num_relevant,
            values={
                measure: sum(seed[subqid].values[measure] for seed in seeds.values()) / len(seeds)
                for measure in measures
            },
        )
        for subqid in ids
    }
    return means, unpaired


def check_same(evaluations: Mapping[str, Mapping[str, QueryValues]], ids: Sequence[str]) -> None:
    """Refuses evaluations that were not made over the same questions, relevant documents and slices.

    Raises:
        InputError: the text names the two evaluations, the sub-query and what differs.
    """
    (first_name, first), *others = evaluations.items()
    for name, other in others:
        for subqid in ids:
            one, two = first[subqid], other[subqid]
            for field, left, right in (
                ("qid", one.qid, two.qid),
                ("num_relevant", one.num_relevant, two.num_relevant),
                ("slices", sorted(one.slices), sorted(two.slices)),
            ):
                if left != right:
                    raise InputError(
                        f"sub-query {subqid!r}: {field} differs: {left!r} in {first_name}, {right!r} in {name}; "
                        "evaluate both over the same examples, questions and slices"
                    )
