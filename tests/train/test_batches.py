"""What a document is to a query inside a batch."""

import dataclasses

import numpy as np
import pytest

from agentir.records import SearchQuery
from agentir.train.batches import (
    MASKED,
    NEGATIVE,
    POSITIVE,
    Group,
    choose,
    length_batches,
    relations,
    relevant_keys,
)
from agentir.train.data import TrainingRow


def row(rowid: str, question: str, positives: list[str], negatives: list[str]) -> TrainingRow:
    return TrainingRow(
        rowid=rowid,
        question=question,
        query=SearchQuery(query=rowid),
        positives=tuple(positives),
        negatives=tuple(negatives),
    )


def relate(*rows: TrainingRow, same_text: dict[str, str] | None = None) -> dict[str, dict[str, int]]:
    """rowid -> docid -> relation, with every row's first positive and all of its negatives."""
    docids = {docid for each in rows for docid in (*each.positives, *each.negatives)}
    keys = {docid: (same_text or {}).get(docid, docid) for docid in docids}
    groups = [Group(row=each, positive=each.positives[0], negatives=each.negatives) for each in rows]
    columns, matrix = relations(groups, keys, relevant_keys(rows, keys))
    assert len({keys[docid] for docid in columns}) == len(columns), "a text stands in the batch once"
    assert (matrix == POSITIVE).sum(axis=1).tolist() == [1] * len(rows)
    return {each.rowid: dict(zip(columns, matrix[index].tolist(), strict=True)) for index, each in enumerate(rows)}


def test_other_rows_documents_are_negatives() -> None:
    found = relate(row("a", "q1", ["p1"], ["n1"]), row("b", "q2", ["p2"], ["n2"]))
    assert found["a"] == {"p1": POSITIVE, "n1": NEGATIVE, "p2": NEGATIVE, "n2": NEGATIVE}
    assert found["b"] == {"p1": NEGATIVE, "n1": NEGATIVE, "p2": POSITIVE, "n2": NEGATIVE}


def test_positive_shared_by_two_questions_is_never_a_negative() -> None:
    found = relate(row("a", "q1", ["p"], []), row("b", "q2", ["p"], ["n"]))
    assert found["a"]["p"] == found["b"]["p"] == POSITIVE


def test_positive_of_one_question_that_is_a_hard_negative_of_another_stays_both() -> None:
    found = relate(row("a", "q1", ["x"], []), row("b", "q2", ["p"], ["x"]))
    assert found["a"]["x"] == POSITIVE and found["b"]["x"] == NEGATIVE


def test_document_with_the_text_of_the_positive_is_masked_out_of_the_negatives() -> None:
    found = relate(row("a", "q1", ["p"], ["copy", "n"]), row("b", "q2", ["r"], []), same_text={"copy": "p"})
    assert "copy" not in found["a"], "the copy stands in the batch as the positive itself"
    assert found["a"]["p"] == POSITIVE and found["a"]["n"] == NEGATIVE


def test_rows_of_the_same_question_are_not_each_others_negatives() -> None:
    found = relate(row("a", "q", ["p1"], ["n1"]), row("b", "q", ["p2"], ["n2"]), row("c", "other", ["p3"], []))
    assert found["a"] == {"p1": POSITIVE, "n1": NEGATIVE, "p2": MASKED, "n2": MASKED, "p3": NEGATIVE}


def test_own_hard_negative_stays_one_even_if_another_row_of_the_question_wants_it() -> None:
    found = relate(row("a", "q", ["p1"], ["p2"]), row("b", "q", ["p2"], []))
    assert found["a"]["p2"] == NEGATIVE and found["b"]["p1"] == MASKED


def test_positive_of_the_question_is_masked_where_another_question_brings_it() -> None:
    rows = [row("a", "q", ["p1"], []), row("later", "q", ["x"], []), row("b", "other", ["p2"], ["x"])]
    keys = {docid: docid for docid in ("p1", "x", "p2")}
    groups = [Group(row=each, positive=each.positives[0], negatives=each.negatives) for each in (rows[0], rows[2])]
    columns, matrix = relations(groups, keys, relevant_keys(rows, keys))
    assert matrix[0, columns.index("x")] == MASKED


def test_gold_of_the_question_is_masked_where_another_question_brings_it() -> None:
    golden = dataclasses.replace(row("a", "q", ["p1"], []), gold=("g", "not in the batch's documents"))
    rows = [golden, row("b", "other", ["p2"], ["g"])]
    keys = {docid: docid for docid in ("p1", "g", "p2")}
    groups = [Group(row=each, positive=each.positives[0], negatives=each.negatives) for each in rows]
    columns, matrix = relations(groups, keys, relevant_keys(rows, keys))
    assert matrix[:, columns.index("g")].tolist() == [MASKED, NEGATIVE]


def test_second_positive_of_a_row_is_masked() -> None:
    found = relate(row("a", "q", ["p1", "p2"], []), row("b", "other", ["p3"], ["p2"]))
    assert found["a"]["p2"] == MASKED


def test_hard_negative_that_is_also_a_positive_of_the_row_is_never_chosen() -> None:
    assert choose(row("a", "q", ["p"], ["p", "n"]), 7, seed=0, epoch=0).negatives == ("n",)


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_no_negative_is_taken_twice(given: int, expected: int) -> None:
    negatives = choose(row("a", "q", ["p"], [f"n{number}" for number in range(given)]), 3, seed=0, epoch=0).negatives
    assert len(negatives) == len(set(negatives)) == expected


def test_choice_is_fixed_by_seed_and_rotates_with_the_epoch() -> None:
    many = row("a", "q", ["p1", "p2"], [f"n{number}" for number in range(9)])
    epochs = [choose(many, 3, seed=1, epoch=epoch) for epoch in range(3)]
    assert epochs == [choose(many, 3, seed=1, epoch=epoch) for epoch in range(3)]
    assert {docid for group in epochs for docid in group.negatives} == set(many.negatives)
    assert epochs[0].positive != epochs[1].positive
    assert any(choose(many, 3, seed=seed, epoch=0) != epochs[0] for seed in range(2, 6))


def test_length_batches_hold_each_row_once_an_epoch_and_pad_little() -> None:
    lengths = list(np.random.default_rng(0).integers(10, 200, 515))
    epochs = [length_batches(lengths, 32, seed=1, epoch=epoch) for epoch in range(2)]
    for batches in epochs:
        rows = [each for batch in batches for each in batch]
        assert len(rows) == len(set(rows)) == 512 and all(len(batch) == 32 for batch in batches)
    assert epochs[0] != epochs[1]
    assert epochs[0] == length_batches(lengths, 32, seed=1, epoch=0)
    padded = sum(32 * max(lengths[each] for each in batch) for batch in epochs[0])
    assert padded < 1.25 * sum(lengths)
