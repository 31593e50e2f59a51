"""Evaluation on development questions while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator

from agentir.embed.encoder import Vectors
from agentir.embed.model import TorchForward, pad_batch, token_batches
from agentir.embed.tokens import Tokenization
from agentir.measures.ranking import evaluate
from agentir.records import Document, Hit
from agentir.train.data import TrainingRow

DEV_MEASURES = ("nDCG@10", "Recall@5")
DEPTH = 10
BLOCK = 64
"""Queries that are compared with the pool at once."""
EVAL_TOKENS = 4096
"""Tokens of an evaluation batch."""


class DevEvaluator(BaseEvaluator):
    """nDCG@10 and Recall@5 of the rows' positives, averaged over the rows.

    Frozen passages are searched in full; with joint training the pool is what the oracle ranked for any of the rows,
    encoded by the model as it stands.

    Args:
        rows: queries of questions that are not trained on.
        tokenization: the template, tokenizer and limits of training.
        pool: docids that are searched.
        frozen: their unit vectors (documents, dim), or None to encode `documents`.
        documents: docid -> document, for joint training.
    """

    def __init__(
        self,
        rows: Sequence[TrainingRow],
        tokenization: Tokenization,
        pool: Sequence[str],
        frozen: Vectors | None = None,
        documents: Mapping[str, Document] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.tokenization = tokenization
        self.pool = list(pool)
        self.frozen = frozen
        self.documents = documents
        self.primary_metric = DEV_MEASURES[0]
        self.greater_is_better = True
        self._query_ids = [tokenized.ids for tokenized in tokenization.queries([row.query for row in rows])]

    def __call__(  # type: ignore[override]
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Means over the rows, by measure."""
        queries = self._encode(model, self._query_ids)
        if self.frozen is not None:
            vectors = self.frozen
        else:
            assert self.documents is not None
            ids = self.tokenization.documents([self.documents[docid] for docid in self.pool])
            vectors = self._encode(model, ids)
        run = {}
        for start in range(0, len(self.rows), BLOCK):
            scores = queries[start : start + BLOCK] @ np.asarray(vectors).T
            depth = min(DEPTH, scores.shape[1])
            top = np.argpartition(scores, -depth, axis=1)[:, -depth:]
            for index, row in enumerate(self.rows[start : start + BLOCK]):
                hits = [Hit(docid=self.pool[column], score=float(scores[index, column])) for column in top[index]]
                run[row.rowid] = hits
        qrels = {row.rowid: dict.fromkeys(row.positives, 1) for row in self.rows}

        evaluation = evaluate(run, qrels, DEV_MEASURES)
        return {measure: evaluation.mean(measure) for measure in DEV_MEASURES}

    def _encode(self, model: SentenceTransformer, ids: Sequence[list[int]]) -> Vectors:
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
