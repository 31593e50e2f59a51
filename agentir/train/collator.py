"""Makes the tensors of a planned batch: queries, documents, and what each document is to each query."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from agentir.embed.tokens import Tokenization
from agentir.records import Document, SearchQuery
from agentir.train.batches import Batch, batch_of, choose, relevant_keys
from agentir.train.data import TrainingRow
from agentir.train.encoding import WHOLE, PartLimits, texts_of_process
from agentir.train.plan import PlannedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Passages:
    """Where the vectors of a batch's documents come from.

    Attributes:
        keys: docid -> a key that documents of the same text share.
        documents: docid -> document, encoded by the model that is trained unless `frozen` is given.
        frozen: docids -> unit vectors (documents, dim), looked up.
        index: docids of the whole index, from which further negatives are drawn; needs `frozen`, and `keys` for all.
    """

    keys: Mapping[str, str]
    documents: Mapping[str, Document]
    frozen: Callable[[Sequence[str]], np.ndarray] | None = None
    index: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What is put into a batch.

    Attributes:
        seed: of every choice.
        num_negatives: hard negatives of a row and epoch.
        num_listed: further documents of the oracle's list, of a row and epoch, for distillation.
        index_negatives: documents of the index that every batch holds beside its own, drawn anew for each.
        reasoning_dropout: share of the rows of an epoch that are shown without their context.
        mask_positives: see `agentir.train.batches.batch_of`.
        mask_same_question: likewise.
        limits: of the parts that the batch is encoded in.
    """

    seed: int
    num_negatives: int
    num_listed: int = 0
    index_negatives: int = 0
    reasoning_dropout: float = 0.0
    mask_positives: bool = True
    mask_same_question: bool = True
    limits: PartLimits = WHOLE


def without_context(query: SearchQuery) -> SearchQuery:
    """The query alone."""
    return SearchQuery(query=query.query)


@dataclass
class PlannedBatches(Dataset[dict[str, Any]]):
    """The batches of a run as tensors; `self[step]` depends on nothing but the plan and the options.

    Several processes each get their share of a batch's texts (see `agentir.train.encoding`), and all of its relations.
    """

    plan: Sequence[PlannedBatch]
    rows: Sequence[TrainingRow]
    tokenization: Tokenization
    passages: Passages
    options: BatchOptions
    rank: int = 0
    num_processes: int = 1
    num_shortened: int = field(default=0, init=False)
    """Rows whose context was shortened to fit the limit."""

    def __post_init__(self) -> None:
        self._relevant = relevant_keys(self.rows, self.passages.keys)
        tokenized = self.tokenization.queries([row.query for row in self.rows])
        self.num_shortened = sum(query.shortened for query in tokenized)
        self._query_ids = [query.ids for query in tokenized]
        self._bare_ids: list[list[int]] = []
        if self.options.reasoning_dropout:
            bare = self.tokenization.queries([without_context(row.query) for row in self.rows])
            self._bare_ids = [query.ids for query in bare]

    def __len__(self) -> int:
        return len(self.plan)

    def batch(self, step: int) -> Batch:
        """The documents of a batch and what they are to its rows."""
        planned, options = self.plan[step], self.options
        groups = [
            choose(self.rows[row], options.num_negatives, options.seed, planned.epoch, options.num_listed)
            for row in planned.rows
        ]
        return batch_of(
            groups,
            self.passages.keys,
            self._relevant,
            self._drawn(step),
            mask_positives=options.mask_positives,
            mask_same_question=options.mask_same_question,
        )

    def __getitem__(self, step: int) -> dict[str, Any]:
        """`queries`, `documents` or `vectors`, `relations` and `ranks` of a batch."""
        batch = self.batch(step)
        made: dict[str, Any] = {
            "queries": self._texts([self._ids_of(row, self.plan[step].epoch) for row in self.plan[step].rows]),
            "relations": torch.from_numpy(batch.relations),
            "ranks": torch.from_numpy(batch.ranks),
        }
        if self.passages.frozen is not None:
            made["vectors"] = torch.from_numpy(np.asarray(self.passages.frozen(batch.docids), dtype=np.float32))
        else:
            documents = [self.passages.documents[docid] for docid in batch.docids]
            made["documents"] = self._texts(self.tokenization.documents(documents))
        return made

    def lengths(self) -> list[int]:
        """Tokens of each row's query."""
        return [len(ids) for ids in self._query_ids]

    def _ids_of(self, row: int, epoch: int) -> list[int]:
        share = self.options.reasoning_dropout
        draw = random.Random(f"{self.options.seed}\x00{epoch}\x00{self.rows[row].rowid}").random
        return self._bare_ids[row] if share and draw() < share else self._query_ids[row]

    def _drawn(self, step: int) -> Sequence[str]:
        index, wanted = self.passages.index, self.options.index_negatives
        if wanted >= len(index):
            return index
        return random.Random(f"{self.options.seed}\x00index\x00{step}").sample(index, wanted)

    def _texts(self, ids: Sequence[list[int]]) -> dict[str, Any]:
        return texts_of_process(ids, self.tokenization.tokenizer, self.options.limits, self.rank, self.num_processes)
