"""A retriever over an index folder, as an agent's search tool needs it: query and reasoning in, snippets out.

    retriever = Retriever.open("runs/index")
    response = retriever.search("Oslo opera architect", reasoning="The question asks for the firm; Bergen is ruled out.")
    document = retriever.get_document(response.results[0].docid)

Arguments are checked as `agentir.search.request` says, the same as over REST and MCP. A retriever may be used from many
threads at once.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from agentir.embed.encoder import HISTORY_SLOTS, Encoder, QueryTooLongError
from agentir.embed.load import Backend, load_encoder
from agentir.errors import EncoderError, RequestError
from agentir.records import Document, Hit, SearchQuery
from agentir.search.bm25 import Bm25Searcher
from agentir.search.index import Index
from agentir.search.request import DEFAULT_LIMITS, Limits, SearchRequest, parse_docid, parse_search

SearcherKind = Literal["auto", "dense", "bm25"]
SNIPPET_WORDS = 200
_CHARS_PER_WORD = 10
"""Bounds snippets of scripts without spaces, and of texts that are one long line of data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A document that was found; `snippet` is the beginning of its text, with an ellipsis where it was cut."""

    docid: str
    score: float
    title: str
    snippet: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResponse:
    """What a search found, best first.

    Attributes:
        results: at most k documents; BM25 gives fewer where no more hold a word of the query.
        index_version: identifies the content of the index that was searched.
        reasoning_used: whether reasoning took part; BM25, and encoders that have no place for it, read the query.
        reasoning_truncated: whether the reasoning lost its oldest end, to `Limits.max_reasoning_chars` or to the encoder's
            token limit.
        reasoning: what went to the encoder: markup removed, cut to `Limits.max_reasoning_chars`; empty if none was used.
    """

    results: tuple[SearchResult, ...]
    index_version: str
    reasoning_used: bool
    reasoning_truncated: bool
    reasoning: str


class Retriever:
    """Searches one index with one searcher; `open` is the usual way to make one.

    Args:
        index: the opened index.
        encoder: encodes the queries; None searches with BM25.
        snippet_words: how much of each document a result shows.
        limits: the bounds of requests.

    Raises:
        ArtifactError: the index does not hold what the searcher needs.
        EncoderError: the encoder does not fit the vectors, or reads the question or earlier searches, which a search does
            not carry.
    """

    def __init__(
        self,
        index: Index,
        encoder: Encoder | None,
        *,
        snippet_words: int = SNIPPET_WORDS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.index = index
        self.limits = limits
        self.snippet_words = snippet_words
        if encoder is not None and encoder.context_slot not in (None, "reasoning"):
            read = "the episode's earlier searches" if encoder.context_slot in HISTORY_SLOTS else "the question"
            raise EncoderError(
                f"{encoder.name}: reads {read} beside the query, and a search carries query and reasoning only; "
                "expected an encoder that reads the reasoning, or the query alone"
            )
        self._reads_reasoning = encoder is not None and encoder.context_slot == "reasoning"
        self.searcher = index.bm25() if encoder is None else index.dense(encoder)

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: str | None = None,
        *,
        searcher: SearcherKind = "auto",
        backend: Backend = "auto",
        max_tokens: int | None = None,
        snippet_words: int = SNIPPET_WORDS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Retriever:
        """Opens an index folder and, for dense search, loads the query encoder.

        Args:
            path: an index folder.
            encoder: a model folder or name; default is the model that built the index.
            searcher: "auto" is dense if the index holds vectors, else BM25.
            backend: what computes the encoder, see `agentir.embed.load.load_encoder`.
            max_tokens: limit of a rendered query; default is the model's own.
            snippet_words: how much of each document a result shows.
            limits: the bounds of requests.

        Raises:
            ArtifactError: no index is there, or it does not hold what the searcher needs.
            EncoderError: the encoder does not fit the vectors, or reads the question or earlier searches, which a
                search does not carry.
        """
        index = Index.open(path)
        loaded = None
        if searcher == "dense" or (searcher == "auto" and index.has_vectors):
            built_with = index.encoder_name
            loaded = load_encoder(encoder or built_with, backend=backend, max_tokens=max_tokens)
        elif encoder is not None or max_tokens is not None:
            warnings.warn(f"{path} is searched with BM25, which ignores encoder and max_tokens", stacklevel=2)
        return cls(index, loaded, snippet_words=snippet_words, limits=limits)

    @property
    def index_version(self) -> str:
        """Identifies the content of the index."""
        return self.index.version

    @property
    def reads_reasoning(self) -> bool:
        """Whether reasoning takes part in a search."""
        return self._reads_reasoning

    def search(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        """Finds the k documents (default 10) that fit query and reasoning best.

        Raises:
            RequestError: an argument does not fit.
        """
        return self.answer(parse_search({"query": query, "reasoning": reasoning, "k": k}, self.limits))

    def answer(self, request: SearchRequest) -> SearchResponse:
        """Runs a search whose arguments were checked.

        Raises:
            RequestError: the query alone exceeds the encoder's token limit.
        """
        reasoning = request.reasoning if self.reads_reasoning else ""
        hits, shortened = self._find(SearchQuery(query=request.query, reasoning=reasoning), request.k)
        return SearchResponse(
            results=tuple(self.result(hit.docid, hit.score) for hit in hits),
            index_version=self.index_version,
            reasoning_used=bool(reasoning),
            reasoning_truncated=bool(reasoning) and (request.reasoning_truncated or shortened),
            reasoning=reasoning,
        )

    def _find(self, query: SearchQuery, k: int) -> tuple[list[Hit], bool]:
        """The hits of a query, and whether its reasoning lost its oldest end to the encoder's limit."""
        if isinstance(self.searcher, Bm25Searcher):
            return self.searcher.search([query], k)[0], False
        try:
            encoded = self.searcher.encode([query])
        except QueryTooLongError as error:
            raise RequestError("query", str(error).removeprefix("query: ")) from None
        return self.searcher.search_vectors(encoded.vectors, k)[0], encoded.shortened[0]

    def get_document(self, docid: str) -> Document | None:
        """A whole document, None where the index holds no such docid.

        Raises:
            RequestError: the docid is no string or empty.
        """
        row = self.index.pack.row(parse_docid({"docid": docid}))
        return None if row is None else self.index.pack.document(row)

    def close(self) -> None:
        """Releases the index; the retriever cannot be used afterwards."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def asearch(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        """`search` in a worker thread."""
        return await asyncio.to_thread(self.search, query, reasoning, k)

    async def aget_document(self, docid: str) -> Document | None:
        """`get_document` in a worker thread."""
        return await asyncio.to_thread(self.get_document, docid)

    def result(self, docid: str, score: float) -> SearchResult:
        """A document of the index as a search shows it."""
        row = self.index.pack.row(docid)
        assert row is not None, docid
        document = self.index.pack.document(row)
        text = snippet(document.text, self.snippet_words)
        return SearchResult(docid=docid, score=score, title=document.title, snippet=text, url=document.url)


def snippet(text: str, words: int) -> str:
    """The beginning of a text up to a number of words (and ten times as many characters), marked where it is cut."""
    head = text.lstrip()
    found = _first_words(words).match(head, 0, words * _CHARS_PER_WORD)
    shown = found[0] if found else ""
    return shown + " …" if len(shown) < len(head.rstrip()) else shown


@cache
def _first_words(count: int) -> re.Pattern[str]:
    return re.compile(rf"(?:\s*+\S++){{0,{count}}}")
