"""Late interaction over the hits of a first stage."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from agentir.embed.maxsim import MultiVectorTexts, TokenVectors, maxsim, spans
from agentir.embed.multi_vector import TokenEncoder
from agentir.errors import InputError
from agentir.records import Document, Hit, SearchQuery
from agentir.search.protocol import Searcher, check_k

BLOCK_DOCUMENTS = 512
"""Candidates that are encoded together."""
DEPTH = 100
"""Hits of the first stage that are rescored."""
CACHE_BYTES = 512 << 20
"""Token vectors of documents that are kept for later queries."""


class MaxSimReranker:
    """Orders what a first stage found anew, by exact MaxSim; may be used by many threads at once, which take turns.

    Args:
        encoder: encodes queries and documents.
        find: gives the documents of docids, in any order.
        cache_bytes: how many token vectors of documents are kept, beside those just needed.
    """

    def __init__(
        self,
        encoder: TokenEncoder,
        find: Callable[[Sequence[str]], Iterable[Document]],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.encoder = encoder
        self.cache_bytes = cache_bytes
        self._find = find
        self._cache: OrderedDict[str, TokenVectors] = OrderedDict()
        self._lock = threading.Lock()

    def rescore(self, queries: Sequence[SearchQuery], hits: Sequence[Sequence[Hit]]) -> list[list[Hit]]:
        """The hits of each query with MaxSim as their score, the highest first, equal ones in the order of their docids.

        Raises:
            QueryTooLongError: a query alone exceeds the token limit.
            InputError: a hit's document is not found.
        """
        with self._lock:
            texts = self.encoder.encode_queries(queries).texts
            rescored: list[list[Hit]] = []
            for first, last in spans(np.array([len(each) for each in hits], dtype=np.int64), BLOCK_DOCUMENTS):
                self._encode({hit.docid for each in hits[first:last] for hit in each})
                rescored += [self._ordered(texts[row], [hit.docid for hit in hits[row]]) for row in range(first, last)]
                self._trim()
        return rescored

    def _encode(self, docids: set[str]) -> None:
        """Puts the vectors of these documents into the cache, as those used last."""
        documents = {each.docid: each for each in self._find(sorted(docids - self._cache.keys()))}
        if missing := docids - self._cache.keys() - documents.keys():
            raise InputError(f"{len(missing)} found documents are not in the corpus, the first is {min(missing)!r}")
        encoded = self.encoder.encode_documents(list(documents.values()))
        self._cache.update((docid, encoded[place].copy()) for place, docid in enumerate(documents))
        for docid in docids:
            self._cache.move_to_end(docid)

    def _ordered(self, query: TokenVectors, docids: Sequence[str]) -> list[Hit]:
        dim = self.encoder.dim
        documents = MultiVectorTexts.join([self._cache[docid] for docid in docids], dim)
        (scores,) = maxsim(MultiVectorTexts.join([query], dim), documents, normalize=self.encoder.normalize)
        hits = [Hit(docid=docid, score=float(score)) for docid, score in zip(docids, scores, strict=True)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.docid))

    def _trim(self) -> None:
        """Forgets the documents that were not used for longest."""
        size = sum(vectors.nbytes for vectors in self._cache.values())
        while size > self.cache_bytes:
            size -= self._cache.popitem(last=False)[1].nbytes


class RerankedSearcher:
    """A searcher whose best hits are ordered anew.

    Args:
        searcher: the first stage.
        reranker: gives its hits new scores.
        depth: how many hits of the first stage are rescored; more where more are asked for.
    """

    def __init__(self, searcher: Searcher, reranker: MaxSimReranker, depth: int = DEPTH) -> None:
        self.searcher = searcher
        self.reranker = reranker
        self.depth = depth

    def search(self, queries: Sequence[SearchQuery], k: int) -> list[list[Hit]]:
        """See `agentir.search.protocol.Searcher.search`.

        Raises:
            QueryTooLongError: a query alone exceeds a token limit.
        """
        check_k(k)
        found = self.searcher.search(queries, max(k, self.depth))
        return [hits[:k] for hits in self.reranker.rescore(queries, found)]
