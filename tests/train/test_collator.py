"""The tensors of a planned batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentir.corpus.text_key import text_key
from agentir.embed.load import load_model
from agentir.embed.template import template_for
from agentir.embed.tokens import Tokenization
from agentir.records import Document, SearchQuery
from agentir.train.batches import HARD_NEGATIVE, MASKED, NEGATIVE, POSITIVE, UNRANKED
from agentir.train.collator import BatchOptions, Passages, PlannedBatches, without_context
from agentir.train.data import TrainingRow
from agentir.train.encoding import PartLimits
from agentir.train.plan import PlannedBatch, plan_batches

NUM_ROWS, BATCH_SIZE = 60, 6
DOCUMENTS = {
    f"d{number}": Document(docid=f"d{number}", text=f"text {number} " + "x " * (number % 9)) for number in range(90)
}
INDEX_ONLY = {f"i{number}": Document(docid=f"i{number}", text=f"of the index {number}") for number in range(40)}
COPIES = {f"c{number}": Document(docid=f"c{number}", text=DOCUMENTS[f"d{number}"].text.upper()) for number in range(90)}
INDEX = DOCUMENTS | INDEX_ONLY | COPIES
KEYS = {docid: text_key(document) for docid, document in INDEX.items()}


def make_row(number: int) -> TrainingRow:
    pool = [f"d{(number + step) % 90}" for step in range(20)]
    return TrainingRow(
        rowid=f"q{number // 3}_turn{number % 3}",
        question=f"q{number // 3}",
        query=SearchQuery(query=f"find {number}", reasoning=f"I should look for {number}. " * (1 + number % 7)),
        positives=tuple(pool[:2]),
        negatives=tuple(pool[-7:]),
        pool=tuple(pool),
    )


ROWS = [make_row(number) for number in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def tokenization(tiny_qwen3: Path) -> Tokenization:
    return Tokenization(load_model(str(tiny_qwen3), device="cpu").tokenizer, template_for("reasoning+query"), 96, 64)


def vectors_of(docids: Sequence[str]) -> np.ndarray:
    """A vector a document that tells it from all others."""
    order = {docid: number for number, docid in enumerate(INDEX)}
    return np.array([[order[docid], 1.0] for docid in docids], dtype=np.float64)


JOINT = Passages(keys=KEYS, documents=DOCUMENTS)
FROZEN = Passages(keys=KEYS, documents=DOCUMENTS, frozen=vectors_of, index=list(INDEX))


def make(
    tokenization: Tokenization,
    passages: Passages = JOINT,
    *,
    rows: Sequence[TrainingRow] = ROWS,
    epochs: float = 2,
    rank: int = 0,
    num_processes: int = 1,
    **options: Any,
) -> PlannedBatches:
    plan = plan_batches([row.question for row in rows], [1] * len(rows), batch_size=BATCH_SIZE, epochs=epochs, seed=1)
    return PlannedBatches(
        plan=plan,
        rows=rows,
        tokenization=tokenization,
        passages=passages,
        options=BatchOptions(**({"seed": 1, "num_negatives": 3} | options)),
        rank=rank,
        num_processes=num_processes,
    )


def own_ids(made: dict[str, Any]) -> list[list[int]]:
    """Token ids of the texts that a process encodes, one part after the other, without what is only repeated."""
    return [
        ids[mask == 1].tolist()
        for part in made["parts"][made["num_repeated"] :]
        for ids, mask in zip(part["input_ids"], part["attention_mask"], strict=True)
    ]


def ids_of(*made: dict[str, Any]) -> list[list[int]]:
    """Token ids of a batch's texts in its order, from the shares of all processes."""
    found = [ids for each in made for ids in own_ids(each)]
    return [found[place] for place in np.argsort(made[0]["order"].tolist())]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    else:
        assert found == expected


EVERYTHING = {"num_listed": 4, "reasoning_dropout": 0.4, "limits": PartLimits(size=4, tokens=200)}


@pytest.mark.parametrize(
    ("passages", "options"),
    [(JOINT, {}), (JOINT, EVERYTHING), (FROZEN, EVERYTHING | {"index_negatives": 25})],
    ids=["plain", "joint", "frozen"],
)
def test_a_step_depends_on_nothing_but_plan_and_options(
    tokenization: Tokenization, passages: Passages, options: dict[str, Any]
) -> None:
    batches = make(tokenization, passages, **options)
    assert len(batches) == 20
    steps = [batches[step] for step in range(20)]
    again = make(tokenization, passages, **options)
    for step in (19, 3, 0, 3):
        assert_same(again[step], steps[step])
        assert_same(batches[step], steps[step])
    assert any(not torch.equal(steps[step]["relations"], steps[0]["relations"]) for step in range(1, 20))
    others = make(tokenization, passages, **options | {"seed": 2})
    assert any(others.batch(step).docids != batches.batch(step).docids for step in range(5))


def test_tensors_are_those_of_the_batchs_rows_and_documents(tokenization: Tokenization) -> None:
    batches = make(tokenization, num_listed=4, limits=PartLimits(tokens=150))
    for step in (0, 15):
        made, batch, rows = batches[step], batches.batch(step), batches.plan[step].rows
        queries = tokenization.queries([ROWS[row].query for row in rows])
        assert ids_of(made["queries"]) == [query.ids for query in queries]
        assert ids_of(made["documents"]) == tokenization.documents([DOCUMENTS[docid] for docid in batch.docids])
        assert len(made["documents"]["parts"]) > 1 and "vectors" not in made
        assert made["relations"].tolist() == batch.relations.tolist() and made["ranks"].tolist() == batch.ranks.tolist()
        for index, row in enumerate(rows):
            (positive,) = np.flatnonzero(batch.relations[index] == POSITIVE)
            assert batch.docids[positive] in ROWS[row].positives
            place = {docid: rank for rank, docid in enumerate(ROWS[row].pool)}
            assert batch.ranks[index].tolist() == [place.get(docid, UNRANKED) for docid in batch.docids]
            assert (batch.ranks[index] != UNRANKED).sum() >= 1 + 3 + 4


def test_hard_negatives_of_the_same_question_are_negatives_where_they_are_not_masked(
    tokenization: Tokenization,
) -> None:
    relations = []
    for mask in (True, False):
        batches = make(tokenization, mask_same_question=mask, num_negatives=7)
        batches.plan = [PlannedBatch(0, (0, 2, 40))]  # the first two are of one question
        batch = batches.batch(0)
        relations.append(batch.relations[:, batch.docids.index("d21")].tolist())
    assert relations == [[MASKED, HARD_NEGATIVE, NEGATIVE], [NEGATIVE, HARD_NEGATIVE, NEGATIVE]]


def test_positives_and_negatives_rotate_with_the_epoch_of_the_plan(tokenization: Tokenization) -> None:
    batches = make(tokenization)
    batches.plan = [PlannedBatch(epoch, (0, 20, 40)) for epoch in range(3)]
    first, second, _ = found = [set(batches.batch(step).docids) for step in range(3)]
    assert first != second
    for row in (0, 20, 40):
        assert set(ROWS[row].negatives) <= set.union(*found) and set(ROWS[row].positives) <= set.union(*found)


def test_share_of_rows_is_shown_without_context_other_rows_each_epoch(tokenization: Tokenization) -> None:
    rows = [make_row(number) for number in range(300)]
    whole, bare = (
        [query.ids for query in tokenization.queries(queries)]
        for queries in ([row.query for row in rows], [without_context(row.query) for row in rows])
    )

    def dropped(batches: PlannedBatches) -> list[set[int]]:
        found: list[set[int]] = [set(), set()]
        for step, planned in enumerate(batches.plan):
            for row, ids in zip(planned.rows, ids_of(batches[step]["queries"]), strict=True):
                assert ids in (whole[row], bare[row]) and whole[row] != bare[row]
                if ids == bare[row]:
                    found[planned.epoch].add(row)
        return found

    frozen = Passages(keys=KEYS, documents=DOCUMENTS, frozen=vectors_of)
    first, second = dropped(make(tokenization, frozen, rows=rows, reasoning_dropout=0.3))
    assert 0.2 < len(first) / 300 < 0.4 and 0.2 < len(second) / 300 < 0.4
    assert len(first & second) < 0.6 * len(first), "drawn anew for each epoch"
    assert [first, second] == dropped(make(tokenization, frozen, rows=rows, reasoning_dropout=0.3))
    assert dropped(make(tokenization, frozen, rows=rows)) == [set(), set()]
    assert dropped(make(tokenization, frozen, rows=rows, reasoning_dropout=0.3, seed=2)) != [first, second]
    more = dropped(make(tokenization, frozen, rows=rows, reasoning_dropout=0.9))
    assert first < more[0] and len(more[0]) > 0.8 * 300


def test_shortened_queries_are_counted(tokenization: Tokenization) -> None:
    short = Tokenization(tokenization.tokenizer, tokenization.template, 40, 64)
    batches = make(short, reasoning_dropout=0.5)
    lengths = batches.lengths()
    assert lengths == [len(query.ids) for query in short.queries([row.query for row in ROWS])] and max(lengths) <= 40
    assert batches.num_shortened == sum(length > 40 for length in make(tokenization).lengths()) > 0
    assert make(tokenization).num_shortened == 0


def test_frozen_vectors_are_those_of_the_batchs_documents(tokenization: Tokenization) -> None:
    batches = make(tokenization, FROZEN, index_negatives=20)
    for step in (0, 7):
        made, batch = batches[step], batches.batch(step)
        assert made["vectors"].dtype == torch.float32 and "documents" not in made
        np.testing.assert_array_equal(made["vectors"].numpy(), vectors_of(batch.docids))
        assert made["relations"].shape == (BATCH_SIZE, len(batch.docids))


def test_documents_of_the_index_are_drawn_beside_the_batchs_own(tokenization: Tokenization) -> None:
    plain, batches = (make(tokenization, FROZEN, index_negatives=number) for number in (0, 50))
    drawn = []
    for step in range(len(batches)):
        own, batch = plain.batch(step).docids, batches.batch(step)
        assert batch.docids[: len(own)] == own and len({KEYS[docid] for docid in batch.docids}) == len(batch.docids)
        drawn.append(batch.docids[len(own) :])
        assert 20 < len(drawn[-1]) <= 50, "copies of the batch's own documents do not count twice"
        for index, row in enumerate(batches.plan[step].rows):
            for docid, relation in zip(drawn[-1], batch.relations[index, len(own) :], strict=True):
                known = {KEYS[known] for known in ROWS[row].pool}
                siblings = [other for other in ROWS if other.question == ROWS[row].question]
                known |= {KEYS[positive] for other in siblings for positive in other.positives}
                assert relation == (MASKED if KEYS[docid] in known else NEGATIVE)
    assert len({tuple(docids) for docids in drawn}) == len(batches), "drawn anew for each batch"
    assert {docid for docids in drawn for docid in docids} >= INDEX_ONLY.keys()


@pytest.mark.parametrize("number", [len(INDEX), 10_000])
def test_as_many_documents_as_the_index_has_or_more_are_all_of_it(tokenization: Tokenization, number: int) -> None:
    batches = make(tokenization, FROZEN, index_negatives=number)
    for step in (0, 7):
        assert {KEYS[docid] for docid in batches.batch(step).docids} == set(KEYS.values())


@pytest.mark.parametrize("num_processes", [2, 3])
def test_shares_of_several_processes_are_the_whole_batch(tokenization: Tokenization, num_processes: int) -> None:
    alone = make(tokenization, **EVERYTHING)
    each = [make(tokenization, **EVERYTHING, rank=rank, num_processes=num_processes) for rank in range(num_processes)]
    for step in (0, 13):
        whole, made = alone[step], [batches[step] for batches in each]
        for share in made:
            assert_same((share["relations"]), whole["relations"])
            assert_same((share["ranks"]), whole["ranks"])
        for side in ("queries", "documents"):
            sides = [share[side] for share in made]
            assert ids_of(*sides) == ids_of(whole[side])
            assert len({len(share["parts"]) for share in sides}) == 1
            for rank, share in enumerate(sides):
                assert share["sizes"] == sides[0]["sizes"] and torch.equal(share["order"], sides[0]["order"])
                assert len(own_ids(share)) == share["sizes"][rank]
                assert len(own_ids(share)) < len(whole[side]["order"])
