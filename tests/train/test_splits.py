"""Rows divided by question: nothing that is measured was trained on, and sizes are fair."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.errors import ConfigError
from agentir.records import SearchQuery
from agentir.train.data import TrainingRow
from agentir.train.splits import Division, folds, split_by_question


def row(number: int, question: str, *positives: str, gold: Sequence[str] = ()) -> TrainingRow:
    query = SearchQuery(query=f"query {number}")
    return TrainingRow(
        rowid=f"row {number}", question=question, query=query, positives=positives, negatives=("n",), gold=tuple(gold)
    )


def rows_of(sizes: Iterable[int]) -> list[TrainingRow]:
    """So many rows of each question, each with documents of its own."""
    numbered = [(question, place) for question, size in enumerate(sizes) for place in range(size)]
    return [row(number, f"q{question}", f"d{number}") for number, (question, _) in enumerate(numbered)]


def ids(division: Division) -> list[set[str]]:
    return [{row.rowid for row in part} for part in division]


def sides_of(division: Division, *, documents: bool) -> dict[str, set[int]]:
    """The parts of each question, or of each relevant document."""
    sides: dict[str, set[int]] = {}
    for number, part in enumerate(division):
        for one in part:
            for name in (*one.positives, *one.gold) if documents else (one.question,):
                sides.setdefault(name, set()).add(number)
    return sides


def test_folds_hold_each_row_once_and_differ_by_less_than_a_question() -> None:
    rows = rows_of([1, 2, 3, 4] * 10)
    division = folds(rows, 5, seed=3)
    assert [len(part) for part in division] == [20] * 5 and division.num_questions == (8, 8, 8, 8, 8)
    assert set.union(*ids(division)) == {row.rowid for row in rows}
    assert all(len(parts) == 1 for parts in sides_of(division, documents=False).values())
    assert {row.rowid for row in division.rest(2)} == {row.rowid for row in rows} - ids(division)[2]


def test_same_division_whatever_the_order_of_the_rows_and_another_for_another_seed() -> None:
    rows = rows_of([1, 2, 3, 4] * 10)
    shuffled = random.Random(5).sample(rows, len(rows))
    for divide in (lambda given, seed: folds(given, 4, seed), lambda given, seed: split_by_question(given, 0.3, seed)):
        assert ids(divide(rows, 1)) == ids(divide(shuffled, 1)) != ids(divide(rows, 2))


def test_questions_that_share_a_positive_or_gold_document_stay_together() -> None:
    shared = [row(0, "a", "x"), row(1, "b", "y", gold=("x",)), row(2, "c", "y2"), row(3, "d", "z", gold=("g",))]
    rows = shared + [row(10 + number, f"q{number}", f"d{number}") for number in range(8)]
    for seed in range(8):
        division = folds(rows, 3, seed, keys={"y": "same text", "y2": "same text"})
        sides = sides_of(division, documents=False)
        assert sides["a"] == sides["b"] == sides["c"]
        assert (division.by, division.num_components, division.largest_component) == ("component", 10, 3)
        assert division.num_shared == 0
    apart = [sides_of(folds(rows, 3, seed), documents=False) for seed in range(8)]
    assert any(sides["b"] != sides["c"] for sides in apart)


def test_component_with_most_rows_is_divided_by_question_and_told() -> None:
    rows = [row(number, f"q{number // 2}", "hub", f"d{number}") for number in range(16)] + [row(20, "alone", "e")]
    for division in (folds(rows, 4, 0), split_by_question(rows, 0.25, 0)):
        assert division.by == "question" and division.largest_component == 16 and division.num_shared == 1
        assert all(len(parts) == 1 for parts in sides_of(division, documents=False).values())
        assert "16 of 17 rows are of questions linked by shared positives" in division.lines()[1]
    assert max(map(len, folds(rows, 4, 0))) == 5
    assert [len(part) for part in split_by_question(rows, 0.25, 0)] == [13, 4]


def test_large_component_stays_in_training_where_the_rest_suffices() -> None:
    rows = [row(number, f"q{number}", "hub") for number in range(6)] + rows_of([1] * 4)
    rows = [row(n, f"q{n}", "hub") for n in range(6)] + [row(10 + n, f"r{n}", f"d{n}") for n in range(4)]
    division = split_by_question(rows, 0.3, 0)
    assert division.by == "component" and [len(part) for part in division] == [7, 3]
    assert split_by_question(rows, 0.3, 0, by="question").by == "question"


@pytest.mark.parametrize(
    ("num_questions", "num_folds", "text"),
    [
        (3, 4, r"folds: expected from 2 to the number of questions \(3\), found 4"),
        (3, 1, "found 1"),
        (1, 2, r"number of questions \(1\), found 2"),
        (0, 2, r"number of questions \(0\), found 2"),
    ],
)
def test_too_few_questions_for_folds_are_refused(num_questions: int, num_folds: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        folds(rows_of([2] * num_questions), num_folds, 0)


@pytest.mark.parametrize(("sizes", "fraction"), [([9], 0.5), ([1, 1], 0.1), ([1, 1], 1.0), ([], 0.5), ([1], 0.9)])
def test_division_with_an_empty_side_is_refused(sizes: list[int], fraction: float) -> None:
    with pytest.raises(ConfigError, match="dev_fraction: expected a share that leaves questions on both sides"):
        split_by_question(rows_of(sizes), fraction, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.lists(st.integers(0, 12), min_size=1, max_size=3)), min_size=2, max_size=40
    ),
    st.integers(2, 4),
)
def test_no_question_is_ever_on_two_sides_and_no_document_unless_told(
    drawn: list[tuple[int, list[int]]], num_folds: int
) -> None:
    rows = [
        row(n, f"q{question}", *(f"d{document}" for document in found)) for n, (question, found) in enumerate(drawn)
    ]
    if len({one.question for one in rows}) < num_folds:
        return
    division = folds(rows, num_folds, 0)
    assert sorted(one.rowid for part in division for one in part) == sorted(one.rowid for one in rows)
    assert all(division.parts)
    assert all(len(parts) == 1 for parts in sides_of(division, documents=False).values())
    on_several = sum(len(parts) > 1 for parts in sides_of(division, documents=True).values())
    assert on_several == division.num_shared and (division.by == "question" or not on_several)
