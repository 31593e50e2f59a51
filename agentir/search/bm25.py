"""Lexical search: BM25 as in Lucene, on `bm25s`.

Text becomes terms much as in Lucene's English analysis: Unicode words in lower case (NFKC; a CJK character is a word of its
own; numbers such as 3.14 stay whole), without possessive 's and Lucene's English stop words, stemmed by Snowball. Queries
go the same way into a bag of terms and never through a query parser, so no text of an agent is syntax.
"""

from __future__ import annotations

import json
import re
import unicodedata
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path

import bm25s  # type: ignore[import-untyped]
import numpy as np
import Stemmer  # type: ignore[import-not-found]
from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]
from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.corpus.chunker import CJK
from agentir.corpus.pack import CorpusPack
from agentir.errors import ArtifactError
from agentir.records import Hit, SearchQuery
from agentir.search.protocol import best_places, check_k

K1, B = 0.9, 0.4
"""Values of Anserini's baselines (Yang, Fang and Lin, 2017)."""
MAX_QUERY_TERMS = 256
SETTINGS = "settings.json"
ANALYSIS = "english-1"
"""Names the way from text to terms; an index of another way is refused."""
_BLOCK = 1024
_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+(?:'\w+)*")
_CJK = re.compile(f"([{CJK}])")
_STOP_WORDS = frozenset(STOPWORDS_EN)


class Analyzer:
    """Text to terms, the same for documents and queries; not for more than one thread."""

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer("english")

    def terms(self, text: str) -> list[str]:
        """The terms of a text in its order, with repetitions."""
        if not text.isascii():
            text = _CJK.sub(r" \1 ", unicodedata.normalize("NFKC", text).replace("\u2019", "'"))
        words = (word.removesuffix("'s") for word in _WORD.findall(text.lower()))
        terms: list[str] = self._stemmer.stemWords([word for word in words if word not in _STOP_WORDS])
        return terms


def build_bm25(pack: CorpusPack, folder: str | Path) -> int:
    """Writes a BM25 index over title and text of all documents; returns the number of different terms.

    A corpus without a single term is indexed too, with a warning; a search in it finds nothing.

    Args:
        pack: the documents.
        folder: a new folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    analyzer = Analyzer()
    vocabulary: dict[str, int] = {}
    documents: list[array[int]] = []
    with tqdm(total=len(pack), desc="bm25", unit="doc") as progress:
        for start in range(0, len(pack), _BLOCK):
            for document in pack.documents(start, start + _BLOCK):
                terms = analyzer.terms(f"{document.title} {document.text}")
                documents.append(array("i", [vocabulary.setdefault(term, len(vocabulary)) for term in terms]))
                progress.update()
    if vocabulary:
        model = bm25s.BM25(method="lucene", k1=K1, b=B)
        model.index((documents, vocabulary), create_empty_token=False, show_progress=False)
        model.save(folder, show_progress=False)
    else:
        warnings.warn(f"BM25 will find nothing: none of {len(pack)} documents holds a word to index", stacklevel=2)
    settings = {"analysis": ANALYSIS, "num_documents": len(pack), "num_terms": len(vocabulary)}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return len(vocabulary)


class Bm25Searcher:
    """Finds documents by the words of the query.

    Only `SearchQuery.query` is read. Reasoning is left out by design: a long trace would drown the words of the query. At
    most 256 terms of a query count, and those that no document holds are left out. Documents without any of the terms are
    no hits.
    """

    def __init__(self, pack: CorpusPack, model: bm25s.BM25 | None) -> None:
        self._pack = pack
        self._model = model

    @classmethod
    def open(cls, folder: str | Path, pack: CorpusPack) -> Bm25Searcher:
        """Opens what `build_bm25` wrote; scores are memory-mapped.

        Raises:
            ArtifactError: a file is missing or broken, or the index was made over another number of documents.
        """
        folder = Path(folder)
        try:
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            analysis, num_documents, num_terms = (settings[key] for key in ("analysis", "num_documents", "num_terms"))
            model = bm25s.BM25.load(folder, mmap=True, show_progress=False) if num_terms else None
        except (OSError, ValueError, EOFError, KeyError) as error:
            raise ArtifactError(f"{folder}: expected a BM25 index that can be read: {error}") from None
        if analysis != ANALYSIS:
            raise ArtifactError(
                f"{folder}: expected terms of analysis {ANALYSIS!r}, found {analysis!r}; build the index anew"
            )
        if num_documents != len(pack):
            raise ArtifactError(
                f"{folder}: expected a BM25 index of {len(pack)} documents, found one of {num_documents}"
            )
        return cls(pack, model)

    def search(self, queries: Sequence[SearchQuery], k: int) -> list[list[Hit]]:
        """See `agentir.search.protocol.Searcher.search`."""
        check_k(k)
        return [self._hits(query.query, k) for query in queries]

    def _hits(self, query: str, k: int) -> list[Hit]:
        if self._model is None:
            return []
        known = [self._model.vocab_dict[term] for term in Analyzer().terms(query) if term in self._model.vocab_dict]
        # in the order of their numbers: floating-point sums depend on the order of what is added
        scores = self._model.get_scores_from_ids(sorted(known[:MAX_QUERY_TERMS]))
        rows = np.flatnonzero(scores > 0)
        best = best_places(scores[rows], self._pack.docid_ranks[rows], k)
        return [Hit(docid=self._pack.docid(row), score=float(scores[row])) for row in rows[best].tolist()]
