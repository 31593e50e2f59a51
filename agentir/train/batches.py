"""Batches for the contrastive loss: which documents a batch holds, and what each is to each query.

Every document stands in a batch once, however many rows name it. A matrix says what a document is to a query: its
positive, a negative, or nothing at all (`MASKED`), so that no positive is ever pushed away as a negative:

- the query's other positives, and every document with the same text as one of its positives;
- every positive and gold document of the same question, also of rows outside the batch;
- the hard negatives that only other rows of the same question brought (a document that the oracle ranked low for one
  search may be what the next search of the same question looks for).

A row's own hard negatives stay negatives, unless they have a positive's text.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentir.embed.model import pad_batch
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError
from agentir.records import Document
from agentir.train.data import TrainingRow

MASKED, NEGATIVE, POSITIVE = 0, 1, 2
"""What a document is to a query."""


@dataclass(frozen=True, slots=True)
class Group:
    """A row with the positive and the hard negatives chosen for one epoch."""

    row: TrainingRow
    positive: str
    negatives: tuple[str, ...]


def choose(row: TrainingRow, num_negatives: int, seed: int, epoch: int) -> Group:
    """The positive and the hard negatives of a row in an epoch.

    Positives rotate with the epoch. Negatives are shuffled once a row and seed and taken in turn, so that later epochs
    see the others first; a row with fewer negatives than asked for gives those it has, none twice.
    """
    rng = random.Random(hashlib.sha256(f"{seed}\x00{row.rowid}".encode()).digest())
    positives, negatives = list(row.positives), [docid for docid in row.negatives if docid not in row.positives]
    rng.shuffle(positives)
    rng.shuffle(negatives)
    start = epoch * num_negatives % len(negatives) if len(negatives) > num_negatives else 0
    taken = (negatives[start:] + negatives[:start])[:num_negatives]
    return Group(row=row, positive=positives[epoch % len(positives)], negatives=tuple(taken))


def relevant_keys(rows: Iterable[TrainingRow], keys: Mapping[str, str]) -> dict[str, set[str]]:
    """Question -> keys of its gold documents and of all documents that any of its rows names as a positive."""
    relevant: dict[str, set[str]] = {}
    for row in rows:
        known = (docid for docid in (*row.positives, *row.gold) if docid in keys)
        relevant.setdefault(row.question, set()).update(keys[docid] for docid in known)
    return relevant


def relations(
    groups: Sequence[Group], keys: Mapping[str, str], relevant: Mapping[str, set[str]]
) -> tuple[list[str], np.ndarray]:
    """The documents of a batch and what each is to each query.

    Args:
        groups: the rows of the batch.
        keys: docid -> key that documents of the same text share.
        relevant: question -> keys of its positives and gold documents, see `relevant_keys`.

    Returns:
        docids, each once and no two with the same text, and an int64 matrix (rows, documents) of `MASKED`, `NEGATIVE`
        and `POSITIVE`, with exactly one positive a row.
    """
    columns: dict[str, int] = {}
    docids: list[str] = []
    owners: list[set[str]] = []
    for group in groups:
        for docid in (group.positive, *group.negatives):
            if keys[docid] not in columns:
                columns[keys[docid]] = len(docids)
                docids.append(docid)
                owners.append(set())
            owners[columns[keys[docid]]].add(group.row.question)
    matrix = np.full((len(groups), len(docids)), NEGATIVE, dtype=np.int64)
    for index, group in enumerate(groups):
        question = group.row.question
        own = {keys[docid] for docid in group.negatives} - {keys[docid] for docid in group.row.positives}
        for key, column in columns.items():
            if key not in own and (key in relevant[question] or owners[column] == {question}):
                matrix[index, column] = MASKED
        matrix[index, columns[keys[group.positive]]] = POSITIVE
    return docids, matrix


def check_batches(rows: Sequence[TrainingRow], batch_size: int) -> None:
    """Refuses data that the in-batch loss cannot learn from, and several processes.

    The last, smaller batch of an epoch is left out.
    """
    if (world := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(f"WORLD_SIZE: expected 1, found {world}; training runs in one process, on one device")
    if len(rows) < batch_size:
        raise ConfigError(
            f"batch_size: expected at most the number of training rows ({len(rows)}), found {batch_size}; smaller batches "
            "are left out, so there would be nothing to train on"
        )
    if batch_size == 1 and not any(row.negatives for row in rows):
        raise ConfigError("batch_size: a batch of one row without negatives has nothing to learn from; use 2 or more")


POOL_BATCHES = 8
"""Batches that are filled together from rows of similar length."""


def length_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: rows in random order, then sorted by length within pools of a few batches.

    Rows that do not fill a batch are left out of the epoch; which ones changes with it. Less padding, the same data.
    """
    rng = random.Random(f"{seed}\x00{epoch}")
    rows = list(range(len(lengths)))
    rng.shuffle(rows)
    rows = rows[: len(rows) // batch_size * batch_size]
    pool_size = batch_size * POOL_BATCHES
    batches = []
    for start in range(0, len(rows), pool_size):
        pool = sorted(rows[start : start + pool_size], key=lambda row: lengths[row])
        batches += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    rng.shuffle(batches)
    return batches


@dataclass
class Collator:
    """Makes the trainer's batches from row numbers.

    Passages are either frozen (`frozen_vectors` gives their unit vectors, shape (documents, dim)) or encoded by the
    model that is trained (`documents`).
    """

    rows: Sequence[TrainingRow]
    query_ids: Sequence[list[int]]
    keys: Mapping[str, str]
    tokenization: Tokenization
    num_negatives: int
    seed: int
    documents: Mapping[str, Document] | None = None
    frozen_vectors: Callable[[Sequence[str]], np.ndarray] | None = None
    epoch: int = 0
    valid_label_columns: list[str] = field(default_factory=lambda: ["label"])

    def __post_init__(self) -> None:
        self._relevant = relevant_keys(self.rows, self.keys)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """The tokenized queries, the passages and the relation matrix of a batch, as the trainer expects them."""
        import torch

        numbers = [feature["row"] for feature in features]
        groups = [choose(self.rows[number], self.num_negatives, self.seed, self.epoch) for number in numbers]
        docids, matrix = relations(groups, self.keys, self._relevant)
        batch = self._padded("anchor", [self.query_ids[number] for number in numbers])
        if self.frozen_vectors is not None:
            batch["document_sentence_embedding"] = torch.from_numpy(np.array(self.frozen_vectors(docids)))
        else:
            assert self.documents is not None
            batch |= self._padded("document", self.tokenization.documents([self.documents[docid] for docid in docids]))
        batch["label"] = torch.from_numpy(matrix)
        return batch

    def _padded(self, name: str, ids: Sequence[list[int]]) -> dict[str, Any]:
        import torch

        tokenizer = self.tokenization.tokenizer
        input_ids, mask = pad_batch(ids, tokenizer.pad_token_id, tokenizer.padding_side)
        return {f"{name}_input_ids": torch.from_numpy(input_ids), f"{name}_attention_mask": torch.from_numpy(mask)}
