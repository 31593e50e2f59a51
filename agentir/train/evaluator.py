"""Evaluation on development questions while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel

from agentir.embed.encoder import Vectors
from agentir.embed.maxsim import maxsim
from agentir.embed.model import TorchForward, pad_batch, token_batches
from agentir.embed.multi_vector import TokenEncoder
from agentir.embed.tokens import Tokenization
from agentir.measures.ranking import evaluate
from agentir.records import Document, Hit, SearchQuery
from agentir.train.collator import without_context
from agentir.train.data import TrainingRow

DEV_MEASURES = ("nDCG@10", "Recall@5")
"""What is measured; runs are compared by the first."""
Condition = Literal["without reasoning", "wrong reasoning"]
"""How else the queries are rendered: with an empty context, or with that of a row of another question."""
CONDITIONS: tuple[Condition, ...] = ("without reasoning", "wrong reasoning")
"""All of them."""
DEPTH = 10
BLOCK = 64
"""Queries that are compared with the pool at once."""
EVAL_TOKENS = 4096
"""Tokens of an evaluation batch."""


class DevEvaluator(BaseEvaluator):
    """nDCG@10 and Recall@5 of the rows' positives, averaged over the rows.

    Frozen passages are searched in full; with joint training the pool is what the oracle ranked for any of the rows,
    encoded by the model as it stands. Conditions are measured beside (`nDCG@10 without reasoning`): what the model makes
    of bare queries, and whether it reads the reasoning at all.

    Args:
        rows: queries of questions that are not trained on.
        tokenization: the template, tokenizer and limits of training.
        pool: docids that are searched.
        frozen: their unit vectors (documents, dim), or None to encode `documents`.
        documents: docid -> document, for joint training.
        conditions: what else to measure; none where the template shows nothing beside the query.

    Attributes:
        values: rowid -> the first measure, of the last call.
    """

    def __init__(
        self,
        rows: Sequence[TrainingRow],
        tokenization: Tokenization,
        pool: Sequence[str],
        frozen: Vectors | None = None,
        documents: Mapping[str, Document] | None = None,
        conditions: Sequence[Condition] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.tokenization = tokenization
        self.pool = list(pool)
        self.frozen = frozen
        self.documents = documents
        self.primary_metric = DEV_MEASURES[0]
        self.greater_is_better = True
        self.values: dict[str, float] = {}
        self._qrels = {row.rowid: dict.fromkeys(row.positives, 1) for row in rows}
        self._query_ids = {"": self._ids([row.query for row in rows])}
        if tokenization.template.context_slot is not None:
            for condition in conditions:
                queries = [without_context(row.query) for row in rows]
                if condition == "wrong reasoning":
                    queries = with_wrong_context(rows)
                self._query_ids[f" {condition}"] = self._ids(queries)

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Means over the rows, by measure."""
        documents = self._documents(model)
        measures: dict[str, float] = {}
        for suffix, query_ids in self._query_ids.items():
            run: dict[str, list[Hit]] = {}
            for start in range(0, len(self.rows), BLOCK):
                scores = self._scores(model, query_ids[start : start + BLOCK], documents)
                run |= self._hits(self.rows[start : start + BLOCK], scores)
            evaluation = evaluate(run, self._qrels, DEV_MEASURES)
            measures |= {measure + suffix: evaluation.mean(measure) for measure in DEV_MEASURES}
            if not suffix:
                self.values = dict(evaluation.values[DEV_MEASURES[0]])
        return measures

    def _ids(self, queries: Sequence[SearchQuery]) -> list[list[int]]:
        return [tokenized.ids for tokenized in self.tokenization.queries(queries)]

    def _document_ids(self) -> list[list[int]]:
        assert self.documents is not None
        return self.tokenization.documents([self.documents[docid] for docid in self.pool])

    def _documents(self, model: Any) -> Any:
        """The pool's vectors, as `_scores` takes them."""
        return self.frozen if self.frozen is not None else self._encode(model, self._document_ids())

    def _scores(self, model: Any, query_ids: Sequence[list[int]], documents: Any) -> Vectors:
        """Scores (queries, pool)."""
        scores: Vectors = self._encode(model, query_ids) @ np.asarray(documents).T
        return scores

    def _hits(self, rows: Sequence[TrainingRow], scores: Vectors) -> dict[str, list[Hit]]:
        depth = min(DEPTH, scores.shape[1])
        top = np.argpartition(scores, -depth, axis=1)[:, -depth:]
        return {
            row.rowid: [Hit(docid=self.pool[column], score=float(scores[index, column])) for column in top[index]]
            for index, row in enumerate(rows)
        }

    def _encode(self, model: Any, ids: Sequence[list[int]]) -> Vectors:
        was_training = model.training
        model.eval()
        batches = token_batches([len(row) for row in ids], EVAL_TOKENS)
        tokenizer = self.tokenization.tokenizer
        padded = (
            pad_batch([ids[row] for row in rows], tokenizer.pad_token_id, tokenizer.padding_side) for rows in batches
        )
        dim = int(model.get_embedding_dimension() or 0)
        vectors: Vectors = np.zeros((len(ids), dim), dtype=np.float32)
        for rows, output in zip(batches, TorchForward(model)(padded), strict=True):
            vectors[rows] = output
        model.train(was_training)
        return vectors


class MultiVectorDevEvaluator(DevEvaluator):
    """The same by exact MaxSim of token vectors with all of the pool."""

    def _documents(self, model: Any) -> Any:
        return self._encoder(model).encode_ids(self._document_ids(), "document")

    def _scores(self, model: Any, query_ids: Sequence[list[int]], documents: Any) -> Vectors:
        encoder = self._encoder(model)
        return maxsim(encoder.encode_ids(query_ids, "query"), documents, normalize=encoder.normalize)

    def _encoder(self, model: Any) -> TokenEncoder:
        return TokenEncoder("the model in training", model, self.tokenization)


def with_wrong_context(rows: Sequence[TrainingRow]) -> list[SearchQuery]:
    """Each row's query with the context of a row of another question (the query alone where there is none)."""
    queries = []
    for index, row in enumerate(rows):
        others = (rows[(index + step) % len(rows)] for step in range(1, len(rows)))
        other = next((other for other in others if other.question != row.question), None)
        queries.append(without_context(row.query) if other is None else replace(other.query, query=row.query.query))
    return queries
