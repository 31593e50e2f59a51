"""Systems compared over shared sub-queries, and the values they are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentir.errors import InputError
from agentir.jsonl import write_jsonl
from agentir.measures.comparison import Row, compare, is_clear
from agentir.measures.query_values import QueryValues, mean_over_seeds, read_query_values


def item(subqid: str, value: float, *slices: str, num_relevant: int = 1) -> QueryValues:
    qid = subqid.split("_")[0]
    return QueryValues(
        subqid=subqid, qid=qid, slices=("all", *slices), num_relevant=num_relevant, values={"nDCG@10": value}
    )


def by_id(*items: QueryValues) -> dict[str, QueryValues]:
    return {each.subqid: each for each in items}


def test_rows_differences_tallies_and_what_is_left_out() -> None:
    a = by_id(
        item("q1_t0", 1.0), item("q1_t1", 0.0, "late"), item("q2_t0", 0.5), item("q3_t0", 0.5), item("q9_t0", 1.0)
    )
    b = by_id(item("q3_t0", 0.9), item("q2_t0", 0.5), item("q1_t1", 0.5, "late"), item("q1_t0", 0.1))
    result = compare({"A": a, "B": b}, ["nDCG@10"], [("A", "B")], num_resamples=200)
    rows = {(row.system, row.slice): row for row in (*result.rows, *result.differences)}
    assert set(rows) == {(name, part) for name in ("A", "B", "A − B") for part in ("all", "late")}
    assert (rows["A", "all"].mean, rows["A", "all"].num) == (0.5, 4)
    assert rows["A − B", "all"].mean == pytest.approx(0.0)
    assert rows["A − B", "late"].mean == pytest.approx(-0.5)
    assert result.slices == {"all": (4, 3), "late": (1, 1)}
    assert result.left_out == {"A": ("q9_t0",), "B": ()}
    tallies = {tally.slice: (tally.wins, tally.losses, tally.ties) for tally in result.tallies}
    assert tallies == {"all": (1, 1, 1), "late": (0, 1, 0)}


def test_slices_come_in_the_order_of_reports() -> None:
    one = by_id(item("q1_t0", 1.0, "no leak", "mine"), item("q2_t0", 1.0, "later turns", "no leak"))
    assert list(compare({"A": one}, ["nDCG@10"], [], num_resamples=10).slices) == [
        "all",
        "later turns",
        "no leak",
        "mine",
    ]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (item("q1_t0", 1.0, num_relevant=2), "num_relevant differs: 1 in A, 2 in B"),
        (item("q1_t0", 1.0, "late"), "slices differs"),
        (item("q2_t0", 1.0), "no sub-query"),
    ],
)
def test_evaluations_of_something_else_are_refused(other: QueryValues, text: str) -> None:
    with pytest.raises(InputError, match=text):
        compare({"A": by_id(item("q1_t0", 1.0)), "B": by_id(other)}, ["nDCG@10"], [])


def test_the_value_of_a_sub_query_is_the_mean_over_the_seeds_that_share_it() -> None:
    seeds = {"one": by_id(item("q1_t0", 1.0), item("q2_t0", 0.0)), "two": by_id(item("q1_t0", 0.5))}
    means, unpaired = mean_over_seeds(seeds, ["nDCG@10"])
    assert means == by_id(item("q1_t0", 0.75))
    assert unpaired == {"one": ("q2_t0",), "two": ()}


@pytest.mark.parametrize(
    ("items", "measures", "text"),
    [
        ([item("q1_t0", 1.0), item("q1_t0", 1.0)], ["nDCG@10"], "'q1_t0': expected each sub-query once"),
        ([item("q1_t0", 1.0)], ["Recall@5"], "expected a value of Recall@5, found nDCG@10"),
        ([], ["nDCG@10"], "found none"),
    ],
)
def test_values_that_cannot_be_reported_are_refused(
    tmp_path: Path, items: list[QueryValues], measures: list[str], text: str
) -> None:
    write_jsonl(tmp_path / "per_query.jsonl", items)
    with pytest.raises(InputError, match=text):
        read_query_values(tmp_path, measures)


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.1, False), (1e-17, 1e-17, False)],
)
def test_a_difference_is_clear_if_its_interval_leaves_out_zero(low: float, high: float, clear: bool) -> None:
    row = Row(system="A − B", slice="all", measure="MRR", mean=(low + high) / 2, low=low, high=high, num=1)
    assert is_clear(row) is clear
