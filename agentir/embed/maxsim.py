r"""Texts as one unit vector a token, and exact MaxSim between them.

With the token vectors :math:`q_1, ..., q_m` of a query and :math:`d_1, ..., d_n` of a document,

.. math:: s = \sum_i \max_j q_i \cdot d_j

or, normalised by the length of the query, :math:`s / m`, which lies in [-1, 1] and so goes with the temperatures of
single vectors; the order of a query's documents is the same. A document without any vector has the lowest score there is,
as if every similarity were -1.

Reference: Khattab and Zaharia, ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over
BERT, 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agentir.embed.encoder import Vectors

TokenVectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]
"""Those of a text, (tokens, dim)."""
BLOCK_ELEMENTS = 1 << 22
"""Similarities that are held at once: 16 MiB, which stay near the processor."""


@dataclass(frozen=True, slots=True, eq=False)
class MultiVectorTexts:
    """Texts as unit vectors, one a token that counts.

    Attributes:
        vectors: those of all texts, one text after the other, (tokens, dim).
        ends: where the vectors of each text end, int64 (texts,).
    """

    vectors: TokenVectors
    ends: npt.NDArray[np.int64]

    @classmethod
    def join(cls, texts: Sequence[TokenVectors], dim: int) -> MultiVectorTexts:
        """Texts of (tokens, dim) each, as one."""
        vectors: Any = np.concatenate(texts) if texts else np.zeros((0, dim), dtype=np.float32)
        return cls(vectors=vectors, ends=np.cumsum([len(text) for text in texts], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, text: int) -> TokenVectors:
        """The vectors of one text, (tokens, dim)."""
        text = range(len(self))[text]
        return self.vectors[self.ends[text - 1] if text else 0 : self.ends[text]]


def maxsim(queries: MultiVectorTexts, documents: MultiVectorTexts, *, normalize: bool = False) -> Vectors:
    """Exact MaxSim of all queries with all documents, float32 (queries, documents), computed in float32.

    Args:
        queries: token vectors of queries.
        documents: token vectors of documents.
        normalize: divide by the number of the query's tokens.
    """
    scores = np.zeros((len(queries), len(documents)), dtype=np.float32)
    lengths = np.diff(documents.ends, prepend=0)
    for row in range(len(queries)):
        query = np.asarray(queries[row], dtype=np.float32)
        for first, last in spans(lengths, max(BLOCK_ELEMENTS // max(len(query), 1), 1)):
            start = documents.ends[first] - lengths[first]
            vectors = np.asarray(documents.vectors[start : documents.ends[last - 1]], dtype=np.float32)
            filled = np.flatnonzero(lengths[first:last])  # an empty segment would give its neighbour's number
            best = np.full((len(query), last - first), -1, dtype=np.float32)
            if len(filled):
                starts = (documents.ends - lengths)[first:last][filled] - start
                best[:, filled] = np.maximum.reduceat(query @ vectors.T, starts, axis=1)
            scores[row, first:last] = best.sum(axis=0, dtype=np.float64) / (max(len(query), 1) if normalize else 1)
    return scores


def spans(lengths: npt.NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Neighbours, from first to before last, whose lengths sum to no more than `most`, or a single one."""
    first = total = 0
    for place, length in enumerate(lengths):
        if place > first and total + length > most:
            yield first, place
            first, total = place, 0
        total += length
    if len(lengths):
        yield first, len(lengths)
