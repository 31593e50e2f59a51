"""What a batch holds: its documents, and what each is to each query.

Every document stands in a batch once, however many rows name it. A matrix says what a document is to a query: its
positive, one of its own hard negatives, a negative, or nothing at all (`MASKED`), so that no positive is ever pushed away
as a negative:

- the query's other positives, and every document with the same text as one of its positives;
- every positive and gold document of the same question, also of rows outside the batch;
- what only rows of the same question brought: their hard negatives (a document that the oracle ranked low for one search
  may be what the next search of the same question looks for), and the middle of the oracle's list.

A row's own hard negatives stay negatives, unless they have the text of one of its positives or gold documents.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentir.train.data import TrainingRow

MASKED, NEGATIVE, HARD_NEGATIVE, POSITIVE = 0, 1, 2, 3
"""What a document is to a query."""
UNRANKED = -1
"""The rank of a document that the oracle did not rank for a query."""


@dataclass(frozen=True, slots=True)
class Group:
    """A row with the positive and the hard negatives chosen for one epoch, and further documents the oracle ranked."""

    row: TrainingRow
    positive: str
    negatives: tuple[str, ...]
    listed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The documents of a batch and what they are to its queries.

    Attributes:
        docids: each once, no two with the same text.
        relations: int64 (rows, documents): `MASKED`, `NEGATIVE`, `HARD_NEGATIVE` and exactly one `POSITIVE` a row.
        ranks: int64 (rows, documents): the oracle's rank of a document for the row, from 0, or `UNRANKED`.
    """

    docids: list[str]
    relations: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]


def choose(row: TrainingRow, num_negatives: int, seed: int, epoch: int, num_listed: int = 0) -> Group:
    """The positive, the hard negatives and further ranked documents of a row in an epoch.

    Positives rotate with the epoch. Negatives are shuffled once a row and seed and taken in turn, so that later epochs
    see the others first; a row with fewer negatives than asked for gives those it has, none twice. The further
    documents of the oracle's list (for distillation) rotate likewise; those that are taken already are passed over.
    """
    rng = random.Random(hashlib.sha256(f"{seed}\x00{row.rowid}".encode()).digest())
    positives, negatives = list(row.positives), [docid for docid in row.negatives if docid not in row.positives]
    pool = list(row.pool)
    for docids in (positives, negatives, pool):
        rng.shuffle(docids)
    positive = positives[epoch % len(positives)]
    taken = _rotated(negatives, epoch * num_negatives)[:num_negatives]
    listed = [docid for docid in _rotated(pool, epoch * num_listed) if docid != positive and docid not in taken]
    return Group(row=row, positive=positive, negatives=tuple(taken), listed=tuple(listed[:num_listed]))


def _rotated(items: Sequence[str], places: int) -> list[str]:
    start = places % max(len(items), 1)
    return [*items[start:], *items[:start]]


def relevant_keys(rows: Iterable[TrainingRow], keys: Mapping[str, str]) -> dict[str, set[str]]:
    """Question -> keys of its gold documents and of all documents that any of its rows names as a positive."""
    relevant: dict[str, set[str]] = {}
    for row in rows:
        known = (docid for docid in (*row.positives, *row.gold) if docid in keys)
        relevant.setdefault(row.question, set()).update(keys[docid] for docid in known)
    return relevant


def batch_of(
    groups: Sequence[Group],
    keys: Mapping[str, str],
    relevant: Mapping[str, set[str]],
    others: Sequence[str] = (),
    *,
    mask_positives: bool = True,
    mask_same_question: bool = True,
) -> Batch:
    """The documents of a batch and what each is to each query.

    Args:
        groups: the rows of the batch.
        keys: docid -> key that documents of the same text share.
        relevant: question -> keys of its positives and gold documents, see `relevant_keys`.
        others: further documents that are negatives of every row that they are not masked for.
        mask_positives: mask what answers the question: its other positives and gold documents. Without it a row's own
            positive alone is none of its negatives.
        mask_same_question: mask what only rows of the same question brought, and the row's own unlabelled candidates.
    """
    columns: dict[str, int] = {}
    docids: list[str] = []
    owners: list[set[str]] = []
    for group in groups:
        listed = (docid for docid in group.listed if docid in keys)
        for docid in (group.positive, *group.negatives, *listed):
            if keys[docid] not in columns:
                columns[keys[docid]] = len(docids)
                docids.append(docid)
                owners.append(set())
            owners[columns[keys[docid]]].add(group.row.question)
    for docid in others:
        if keys[docid] not in columns:
            columns[keys[docid]] = len(docids)
            docids.append(docid)
    relations = np.full((len(groups), len(docids)), NEGATIVE, dtype=np.int64)
    ranks = np.full(relations.shape, UNRANKED, dtype=np.int64)
    brought_by: dict[str, list[int]] = {}
    for column, questions in enumerate(owners):
        if len(questions) == 1:
            brought_by.setdefault(next(iter(questions)), []).append(column)
    for index, group in enumerate(groups):
        row = group.row
        for rank, docid in reversed(list(enumerate(row.pool))):  # of two with the same text the better rank counts
            if keys.get(docid) in columns:
                ranks[index, columns[keys[docid]]] = rank
        answering = relevant[row.question] if mask_positives else set()
        masked = [columns[key] for key in answering if key in columns]
        if mask_same_question:
            masked += brought_by.get(row.question, [])
            masked += np.flatnonzero(ranks[index] != UNRANKED).tolist()
        relations[index, masked] = MASKED
        own = {keys[docid] for docid in group.negatives}
        if mask_positives:
            own -= {keys.get(docid, "") for docid in (*row.positives, *row.gold)}
        relations[index, [columns[key] for key in own]] = HARD_NEGATIVE
        relations[index, columns[keys[group.positive]]] = POSITIVE
    return Batch(docids=docids, relations=relations, ranks=ranks)
