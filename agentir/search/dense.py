"""Dense search: exact inner products over a memory-mapped matrix of unit vectors.

FAISS scans the matrix where it lies, without a copy. Its single-precision sums differ in the last digits with the place of
a row and the number of queries asked together, so the scores of the rows it finds are summed again in double precision:
equal vectors get equal scores, and a query gets the same hits alone and among others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentir.corpus.pack import CorpusPack
from agentir.embed.encoder import EncodedQueries, Encoder, Vectors, check_space
from agentir.errors import ArtifactError, EncoderError, MissingExtraError
from agentir.records import Hit, SearchQuery
from agentir.search.protocol import best_places, check_k

SPARE = 16
"""How many rows more than k are fetched, so that ties at the cut are mostly settled without a second scan."""
_BLOCK = 64
"""How many rows are summed again at once; few enough to stay in the processor's cache."""


def unit_vectors(vectors: npt.NDArray[Any], where: str) -> Vectors:
    """The rows divided by their lengths, in single precision; zero rows stay zero.

    Raises:
        EncoderError: the array is no matrix, or a row holds NaN or infinity; the text names the first such row.
    """
    checked = _checked(vectors, where).astype(np.float64)
    lengths = np.linalg.norm(checked, axis=1, keepdims=True)
    return (checked / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _checked(vectors: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    if vectors.ndim != 2:
        raise EncoderError(f"{where}: expected a matrix of vectors, found an array of shape {vectors.shape}")
    if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
        raise EncoderError(f"{where}: vector {bad[0]} holds NaN or infinity ({len(bad)} of {len(vectors)} vectors do)")
    return vectors


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise MissingExtraError("faiss-cpu", "cpu") from None
    return faiss


class DenseSearcher:
    """Finds documents by the inner product of query and document vectors.

    Args:
        pack: the documents.
        vectors: float32 unit vectors, shape (documents, dim), one a row of the pack.
        encoder: encodes the queries.
        index_encoder: what the encoder of the documents said of itself (`Encoder.describe`).
        where: the index, for error texts.
        num_threads: OpenMP threads of one search. One is best for one query at a time, and for a server, whose requests run
            beside each other; more help batches.

    Raises:
        EncoderError: the encoder's queries do not live in the space of the vectors.
        ArtifactError: the number of vectors is not the number of documents.
        MissingExtraError: FAISS is not installed.
    """

    def __init__(
        self,
        pack: CorpusPack,
        vectors: Vectors,
        encoder: Encoder,
        index_encoder: dict[str, Any],
        where: str,
        num_threads: int = 1,
    ) -> None:
        check_space(encoder, index_encoder, where)
        if len(vectors) != len(pack):
            raise ArtifactError(f"{where}: expected {len(pack)} vectors, one a document, found {len(vectors)}")
        self._pack = pack
        self._vectors = vectors
        self._encoder = encoder
        self._encoder_lock = threading.Lock()
        self._index_name = f"{index_encoder['name']}/{index_encoder['dim']}"
        self._where = where
        self._num_threads = num_threads
        self._faiss = _faiss()

    def search(self, queries: Sequence[SearchQuery], k: int) -> list[list[Hit]]:
        """See `agentir.search.protocol.Searcher.search`.

        Raises:
            QueryTooLongError: a query alone exceeds the encoder's token limit.
        """
        check_k(k)
        if not queries:
            return []
        return self.search_vectors(self.encode(queries).vectors, k)

    def encode(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        """The vectors of queries; threads take turns at the encoder.

        Raises:
            QueryTooLongError: a query alone exceeds the encoder's token limit.
        """
        with self._encoder_lock:
            return self._encoder.encode_queries(queries)

    def search_vectors(self, queries: npt.NDArray[Any], k: int) -> list[list[Hit]]:
        """The hits of query vectors, shape (queries, dim).

        Raises:
            EncoderError: the vectors are of another dimension than the index, or hold NaN or infinity.
        """
        check_k(k)
        queries = _checked(queries, f"{self._where}: queries of {self._encoder.name}").astype(np.float32)
        if queries.shape[1] != self._vectors.shape[1]:
            raise EncoderError(
                f"{self._where}: dimensions differ: index {self._index_name}, "
                f"query encoder {self._encoder.name}/{queries.shape[1]}"
            )
        k = min(k, len(self._vectors))
        if k == 0 or len(queries) == 0:
            return [[] for _ in queries]
        num_fetched = min(len(self._vectors), k + SPARE)
        others = self._faiss.omp_get_max_threads()  # the setting is the process's, and PyTorch may share it
        self._faiss.omp_set_num_threads(self._num_threads)
        try:
            inner_product = self._faiss.METRIC_INNER_PRODUCT
            scores, rows = self._faiss.knn(queries, self._vectors, num_fetched, metric=inner_product)
        finally:
            self._faiss.omp_set_num_threads(others)
        return [self._hits(*found, k=k) for found in zip(queries, rows, scores[:, -1], strict=True)]

    def _hits(self, query: Vectors, rows: npt.NDArray[np.int64], lowest: np.float32, k: int) -> list[Hit]:
        """The best k of the rows that were fetched, or of all rows where one not fetched may tie with the k-th."""
        rows = rows[rows >= 0]  # FAISS fills up with -1 what it cannot compare, which a damaged file may hold
        if (k := min(k, len(rows))) == 0:
            return []
        scores = self._scores(query, rows)
        cut = np.partition(scores, len(scores) - k)[len(scores) - k]
        # bounds the rounding of a single-precision sum of dim products of unit vectors
        margin = len(query) * np.finfo(np.float32).eps * np.linalg.norm(query)
        if len(rows) < len(self._vectors) and lowest >= cut - margin:
            rows = np.flatnonzero(self._vectors @ query >= cut - margin)
            scores = self._scores(query, rows)
        best = best_places(scores, self._pack.docid_ranks[rows], k)
        found = zip(rows[best].tolist(), scores[best].tolist(), strict=True)
        return [Hit(docid=self._pack.docid(row), score=score) for row, score in found]

    def _scores(self, query: Vectors, rows: npt.NDArray[np.int64]) -> Vectors:
        """Inner products, each summed in the same order whatever its neighbours, rounded once to single precision."""
        scores = np.empty(len(rows), dtype=np.float32)
        exact = query.astype(np.float64)
        for at in range(0, len(rows), _BLOCK):
            scores[at : at + _BLOCK] = (self._vectors[rows[at : at + _BLOCK]] * exact).sum(axis=1)
        return scores
