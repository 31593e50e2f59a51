"""What a document is to a query inside a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.corpus.text_key import text_key
from agentir.jsonl import Rejects
from agentir.records import Document, SearchQuery
from agentir.train.batches import (
    HARD_NEGATIVE,
    MASKED,
    NEGATIVE,
    POSITIVE,
    UNRANKED,
    Batch,
    Group,
    batch_of,
    choose,
    relevant_keys,
)
from agentir.train.data import TrainingRow, read_rows

CASES = Path(__file__).parents[1] / "data" / "cases"


def row(
    rowid: str,
    question: str,
    positives: Sequence[str],
    negatives: Sequence[str] = (),
    *,
    gold: Sequence[str] = (),
    pool: Sequence[str] = (),
) -> TrainingRow:
    return TrainingRow(
        rowid=rowid,
        question=question,
        query=SearchQuery(query=rowid),
        positives=tuple(positives),
        negatives=tuple(negatives),
        gold=tuple(gold),
        pool=tuple(pool),
    )


def make(
    *rows: TrainingRow,
    outside: Sequence[TrainingRow] = (),
    listed: Mapping[str, Sequence[str]] | None = None,
    others: Sequence[str] = (),
    same_text: Mapping[str, str] | None = None,
    mask_same_question: bool = True,
) -> Batch:
    """The batch of every row's first positive and all of its negatives; `outside` are rows that it does not hold."""
    named = {docid for each in rows for docid in (*each.positives, *each.negatives, *each.gold, *each.pool)}
    keys = {docid: (same_text or {}).get(docid, docid) for docid in named | set(others)}
    groups = [
        Group(
            row=each,
            positive=each.positives[0],
            negatives=each.negatives,
            listed=tuple((listed or {}).get(each.rowid, ())),
        )
        for each in rows
    ]
    relevant = relevant_keys([*rows, *outside], keys)
    batch = batch_of(groups, keys, relevant, others, mask_same_question=mask_same_question)
    assert len({keys[docid] for docid in batch.docids}) == len(batch.docids), "a text stands in the batch once"
    assert batch.relations.dtype == batch.ranks.dtype == np.int64
    assert batch.relations.shape == batch.ranks.shape == (len(rows), len(batch.docids))
    assert (batch.relations == POSITIVE).sum(axis=1).tolist() == [1] * len(rows)
    return batch


def related(batch: Batch, index: int = 0) -> dict[str, int]:
    """docid -> what it is to a row."""
    return dict(zip(batch.docids, batch.relations[index].tolist(), strict=True))


def ranked(batch: Batch, index: int = 0) -> dict[str, int]:
    """docid -> its rank for a row."""
    return dict(zip(batch.docids, batch.ranks[index].tolist(), strict=True))


def test_other_rows_documents_are_negatives() -> None:
    batch = make(row("a", "q1", ["p1"], ["n1"]), row("b", "q2", ["p2"], ["n2"]))
    assert related(batch, 0) == {"p1": POSITIVE, "n1": HARD_NEGATIVE, "p2": NEGATIVE, "n2": NEGATIVE}
    assert related(batch, 1) == {"p1": NEGATIVE, "n1": NEGATIVE, "p2": POSITIVE, "n2": HARD_NEGATIVE}


def test_positive_shared_by_two_questions_is_never_a_negative() -> None:
    batch = make(row("a", "q1", ["p"]), row("b", "q2", ["p"], ["n"]))
    assert related(batch, 0)["p"] == related(batch, 1)["p"] == POSITIVE


def test_positive_of_one_question_that_is_a_hard_negative_of_another_stays_both() -> None:
    batch = make(row("a", "q1", ["x"]), row("b", "q2", ["p"], ["x"]))
    assert related(batch, 0)["x"] == POSITIVE and related(batch, 1)["x"] == HARD_NEGATIVE


def test_document_with_the_text_of_the_positive_is_no_negative() -> None:
    batch = make(row("a", "q1", ["p"], ["copy", "n"]), row("b", "q2", ["r"]), same_text={"copy": "p"})
    assert related(batch) == {"p": POSITIVE, "n": HARD_NEGATIVE, "r": NEGATIVE}


def test_document_with_the_text_of_another_positive_of_the_row_is_no_negative() -> None:
    batch = make(row("a", "q1", ["p1", "p2"], ["copy"]), row("b", "q2", ["r"], ["copy"]), same_text={"copy": "p2"})
    assert related(batch, 0)["copy"] == MASKED and related(batch, 1)["copy"] == HARD_NEGATIVE


def test_rows_of_the_same_question_are_not_each_others_negatives() -> None:
    batch = make(row("a", "q", ["p1"], ["n1"]), row("b", "q", ["p2"], ["n2"]), row("c", "other", ["p3"]))
    assert related(batch) == {"p1": POSITIVE, "n1": HARD_NEGATIVE, "p2": MASKED, "n2": MASKED, "p3": NEGATIVE}


def test_what_another_question_brings_too_is_a_negative() -> None:
    batch = make(row("a", "q", ["p1"]), row("b", "q", ["p2"], ["n"]), row("c", "other", ["p3"], ["n"]))
    assert related(batch)["n"] == NEGATIVE


def test_own_hard_negative_stays_one_even_if_another_row_of_the_question_wants_it() -> None:
    batch = make(row("a", "q", ["p1"], ["p2"]), row("b", "q", ["p2"]))
    assert related(batch, 0)["p2"] == HARD_NEGATIVE and related(batch, 1)["p1"] == MASKED


def test_positive_of_the_question_is_masked_where_another_question_brings_it() -> None:
    batch = make(row("a", "q", ["p1"]), row("b", "other", ["p2"], ["x"]), outside=[row("later", "q", ["x"])])
    assert related(batch)["x"] == MASKED


def test_gold_of_the_question_is_masked_where_another_question_brings_it() -> None:
    golden = row("a", "q", ["p1"], gold=["g"])
    unknown = row("later", "q", ["p1"], gold=["not among the documents"])
    batch = make(golden, row("b", "other", ["p2"], ["g"]), outside=[unknown])
    assert batch.relations[:, batch.docids.index("g")].tolist() == [MASKED, HARD_NEGATIVE]


@pytest.mark.parametrize("negative", ["g", "copy"])
def test_gold_document_is_never_a_hard_negative_of_its_own_row(negative: str) -> None:
    batch = make(row("a", "q", ["p"], [negative, "n"], gold=["g"]), same_text={"copy": "g"})
    assert related(batch) == {"p": POSITIVE, negative: MASKED, "n": HARD_NEGATIVE}


def test_second_positive_of_a_row_is_masked() -> None:
    batch = make(row("a", "q", ["p1", "p2"]), row("b", "other", ["p3"], ["p2"]))
    assert related(batch)["p2"] == MASKED


def test_middle_of_the_oracles_list_is_masked_for_its_own_question_and_a_negative_of_others() -> None:
    first = row("a", "q", ["p1"], ["n1"], pool=["p1", "m1", "m2", "n1"])
    batch = make(first, row("b", "q", ["p2"]), row("c", "other", ["p3"]), listed={"a": ["m2", "m1"]})
    assert related(batch, 0) == {
        "p1": POSITIVE, "n1": HARD_NEGATIVE, "m2": MASKED, "m1": MASKED, "p2": MASKED, "p3": NEGATIVE,
    }  # fmt: skip
    assert {related(batch, 1)[docid] for docid in ("n1", "m1", "m2")} == {MASKED}
    assert {related(batch, 2)[docid] for docid in ("n1", "m1", "m2")} == {NEGATIVE}


def test_document_of_the_oracles_list_is_masked_where_another_question_brings_it() -> None:
    batch = make(row("a", "q", ["p1"], pool=["p1", "m"]), row("b", "other", ["p2"], ["m"]))
    assert related(batch, 0)["m"] == MASKED and related(batch, 1)["m"] == HARD_NEGATIVE


def test_listed_document_that_is_unknown_is_not_in_the_batch() -> None:
    group = Group(row=row("a", "q", ["p"], pool=["gone", "p", "m"]), positive="p", negatives=(), listed=("gone", "m"))
    keys = {"p": "p", "m": "m"}
    batch = batch_of([group], keys, relevant_keys([group.row], keys))
    assert ranked(batch) == {"p": 1, "m": 2}


def test_ranks_are_the_places_in_the_oracles_own_list() -> None:
    first = row("a", "q1", ["p1"], ["n1"], pool=["m", "p1", "x", "n1"])
    batch = make(first, row("b", "q2", ["x"], ["p1"], pool=["x"]), listed={"a": ["m"]})
    assert ranked(batch, 0) == {"p1": 1, "n1": 3, "m": 0, "x": 2}
    assert ranked(batch, 1) == {"p1": UNRANKED, "n1": UNRANKED, "m": UNRANKED, "x": 0}


def test_of_two_ranked_documents_with_the_same_text_the_better_rank_counts() -> None:
    batch = make(row("a", "q", ["p"], ["n"], pool=["copy", "p", "n", "twin"]), same_text={"copy": "p", "twin": "n"})
    assert ranked(batch) == {"p": 0, "n": 2}


def test_further_documents_are_negatives_unless_they_are_masked() -> None:
    rows = (row("a", "q1", ["p1", "p2"], ["n"], gold=["g"], pool=["p1", "m"]), row("b", "q2", ["p3"]))
    others = ["x", "p2", "m", "n", "p1", "g", "copy of p3", "y", "x"]
    batch = make(*rows, others=others, same_text={"copy of p3": "p3"})
    assert batch.docids == ["p1", "n", "p3", "x", "p2", "m", "g", "y"], "what rows bring stands first, nothing twice"
    assert related(batch, 0) == {
        "p1": POSITIVE, "n": HARD_NEGATIVE, "p3": NEGATIVE, "x": NEGATIVE, "p2": MASKED, "m": MASKED, "g": MASKED,
        "y": NEGATIVE,
    }  # fmt: skip
    assert set(related(batch, 1).values()) == {POSITIVE, NEGATIVE} and related(batch, 1)["p3"] == POSITIVE


def test_without_masking_of_the_question_only_positives_and_gold_stay_masked() -> None:
    rows = (
        row("a", "q", ["p1", "p9"], ["n1"], gold=["g"], pool=["p1", "m", "n1"]),
        row("b", "q", ["p2"], ["n2", "g"]),
        row("c", "q", ["p9"]),
    )
    batch = make(*rows, listed={"a": ["m"]}, mask_same_question=False)
    assert related(batch) == {
        "p1": POSITIVE, "n1": HARD_NEGATIVE, "m": NEGATIVE, "p2": MASKED, "n2": NEGATIVE, "g": MASKED, "p9": MASKED,
    }  # fmt: skip
    assert ranked(batch)["m"] == 1


DOCIDS = [f"{text}{copy}" for text in "abcdefg" for copy in (1, 2)]
KEYS = {docid: docid[0] for docid in DOCIDS}
SOME = st.lists(st.sampled_from(DOCIDS), unique=True, max_size=5)
SOME_UNKNOWN = st.lists(st.sampled_from([*DOCIDS, "unknown"]), unique=True, max_size=6)
ROW = st.builds(
    row,
    st.just(""),
    st.sampled_from(["q1", "q2", "q3"]),
    st.lists(st.sampled_from(DOCIDS), unique=True, min_size=1, max_size=3),
    SOME,
    gold=SOME_UNKNOWN,
    pool=SOME_UNKNOWN,
)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=6),
    num_outside=st.integers(0, 2),
    num_negatives=st.integers(0, 4),
    num_listed=st.integers(0, 3),
    epoch=st.integers(0, 5),
    others=SOME,
    mask_same_question=st.booleans(),
)
def test_every_document_of_random_batches_is_what_it_should_be(
    rows: list[TrainingRow],
    num_outside: int,
    num_negatives: int,
    num_listed: int,
    epoch: int,
    others: list[str],
    mask_same_question: bool,
) -> None:
    rows = [dataclasses.replace(each, rowid=str(number)) for number, each in enumerate(rows)]
    groups = [choose(each, num_negatives, 1, epoch, num_listed) for each in rows[min(num_outside, len(rows) - 1) :]]
    batch = batch_of(groups, KEYS, relevant_keys(rows, KEYS), others, mask_same_question=mask_same_question)

    def texts(docids: Sequence[str]) -> set[str]:
        return {KEYS[docid] for docid in docids if docid in KEYS}

    brought = [texts((group.positive, *group.negatives, *group.listed)) for group in groups]
    assert sorted(KEYS[docid] for docid in batch.docids) == sorted(set.union(texts(others), *brought))
    bringers: dict[str, set[str]] = {text: set() for text in "abcdefg"}
    for group, found in zip(groups, brought, strict=True):
        for text in found:
            bringers[text].add(group.row.question)
    for index, group in enumerate(groups):
        own, siblings = group.row, [each for each in rows if each.question == group.row.question]
        for column, docid in enumerate(batch.docids):
            text = KEYS[docid]
            if text == KEYS[group.positive]:
                expected = POSITIVE
            elif text in texts(own.positives) | texts(own.gold):
                expected = MASKED
            elif text in texts(group.negatives):
                expected = HARD_NEGATIVE
            elif any(text in texts(each.positives) | texts(each.gold) for each in siblings) or (
                mask_same_question and (text in texts(own.pool) or bringers[text] == {own.question})
            ):
                expected = MASKED
            else:
                expected = NEGATIVE
            assert batch.relations[index, column] == expected, (index, docid)
            places = [place for place, other in enumerate(own.pool) if KEYS.get(other) == text]
            assert batch.ranks[index, column] == min(places, default=UNRANKED)


def test_hard_negative_that_is_also_a_positive_of_the_row_is_never_chosen() -> None:
    assert choose(row("a", "q", ["p"], ["p", "n"]), 7, seed=0, epoch=0).negatives == ("n",)


@pytest.mark.parametrize(("number", "num_chosen"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_no_negative_is_taken_twice(number: int, num_chosen: int) -> None:
    negatives = choose(row("a", "q", ["p"], [f"n{each}" for each in range(number)]), 3, seed=0, epoch=0).negatives
    assert len(negatives) == len(set(negatives)) == num_chosen


def test_choice_is_fixed_by_seed_and_rotates_with_the_epoch() -> None:
    many = row("a", "q", ["p1", "p2"], [f"n{number}" for number in range(9)])
    epochs = [choose(many, 3, seed=1, epoch=epoch) for epoch in range(3)]
    assert epochs == [choose(many, 3, seed=1, epoch=epoch) for epoch in range(3)]
    assert {docid for group in epochs for docid in group.negatives} == set(many.negatives)
    assert epochs[0].positive != epochs[1].positive
    assert any(choose(many, 3, seed=seed, epoch=0) != epochs[0] for seed in range(2, 6))
    others = [choose(dataclasses.replace(many, rowid=rowid), 3, seed=1, epoch=0) for rowid in "bcdef"]
    assert any(group.negatives != epochs[0].negatives for group in others)


@pytest.mark.parametrize("num_negatives", [0, 2, 4, 7])
def test_every_document_of_the_oracles_list_is_in_the_batch_before_one_comes_back(num_negatives: int) -> None:
    pool = [f"d{number}" for number in range(20)]
    whole = row("a", "q", pool[:2], pool[-7:], pool=pool)
    num_listed = 6
    groups = [choose(whole, num_negatives, seed=1, epoch=epoch, num_listed=num_listed) for epoch in range(4)]
    for group in groups:
        taken = {group.positive, *group.negatives}
        assert len(set(group.listed)) == num_listed and not taken & set(group.listed)
    assert {docid for group in groups for docid in (group.positive, *group.negatives, *group.listed)} == set(pool)


def test_short_list_of_the_oracle_is_taken_whole() -> None:
    group = choose(row("a", "q", ["p"], ["n"], pool=["p", "x", "y", "n"]), 1, seed=1, epoch=3, num_listed=8)
    assert sorted(group.listed) == ["x", "y"]
    assert choose(row("a", "q", ["p"], ["n"], pool=["p", "x", "n"]), 1, seed=1, epoch=3).listed == ()


def test_rows_with_none_one_and_nine_negatives_share_a_batch() -> None:
    documents: dict[str, Document] = {}
    rows = read_rows(CASES / "T09" / "train.jsonl", Rejects(), documents)
    keys = {docid: text_key(document) for docid, document in documents.items()}
    relevant = relevant_keys(rows, keys)
    batches = []
    for epoch in range(2):
        groups = [choose(each, 3, seed=1, epoch=epoch) for each in rows]
        assert [len(group.negatives) for group in groups] == [0, 1, 3]
        batches.append(batch_of(groups, keys, relevant))
    for batch in batches:
        assert len(batch.docids) == 7
        assert (batch.relations == HARD_NEGATIVE).sum(axis=1).tolist() == [0, 1, 3]
        assert (batch.relations == NEGATIVE).sum(axis=1).tolist() == [6, 5, 3]
    texts = [{documents[docid].text for docid in batch.docids} for batch in batches]
    assert texts[0] & texts[1] == {"p1", "p2", "n1"}, "other three of the nine negatives, and the other positive"
    assert {"p3a", "p3b"} < texts[0] | texts[1]


def test_without_masks_only_the_own_positive_is_none_of_the_negatives() -> None:
    """As in the published training, where other positives and gold of the question act as negatives."""
    row = TrainingRow(
        rowid="q_turn0",
        question="q",
        query=SearchQuery(query="x"),
        positives=("p", "p2"),
        negatives=("n", "gold"),
        gold=("gold",),
    )
    keys = {docid: docid for docid in ("p", "p2", "gold", "n")}
    groups = [Group(row=row, positive="p", negatives=("n", "gold"))]
    unmasked = batch_of(
        groups, keys, relevant_keys([row], keys), ["p2"], mask_positives=False, mask_same_question=False
    )
    found = dict(zip(unmasked.docids, unmasked.relations[0].tolist(), strict=True))
    assert found == {"p": POSITIVE, "n": HARD_NEGATIVE, "gold": HARD_NEGATIVE, "p2": NEGATIVE}
    masked = batch_of(groups, keys, relevant_keys([row], keys), ["p2"])
    assert dict(zip(masked.docids, masked.relations[0].tolist(), strict=True)) == {
        "p": POSITIVE,
        "n": HARD_NEGATIVE,
        "gold": MASKED,
        "p2": MASKED,
    }
