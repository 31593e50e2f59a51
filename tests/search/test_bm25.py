import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.corpus.loaders import SourcedDocument, read_sourced
from agentir.corpus.pack import CorpusPack, write_pack
from agentir.errors import ArtifactError, RequestError
from agentir.jsonl import Rejects
from agentir.records import Document, SearchQuery
from agentir.search.bm25 import MAX_QUERY_TERMS, Analyzer, Bm25Searcher, build_bm25

CASES = Path(__file__).parents[1] / "data" / "cases"


def searcher(folder: Path, documents: Iterable[Document]) -> Bm25Searcher:
    lined = (SourcedDocument(document=each, file="memory", line=line) for line, each in enumerate(documents, start=1))
    write_pack(folder / "pack", lined, Rejects())
    pack = CorpusPack.open(folder / "pack")
    build_bm25(pack, folder / "bm25")
    return Bm25Searcher.open(folder / "bm25", pack)


def case_searcher(folder: Path, corpus: str) -> Bm25Searcher:
    rejects = Rejects()
    return searcher(folder, [each.document for each in read_sourced(CASES / corpus, rejects)])


def texts(*pairs: tuple[str, str]) -> list[Document]:
    return [Document(docid=docid, text=text) for docid, text in pairs]


def docids(found: Bm25Searcher, query: str, k: int = 10) -> list[str]:
    [hits] = found.search([SearchQuery(query=query)], k)
    return [hit.docid for hit in hits]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Foxes were RUNNING", ["fox", "were", "run"]),
        ("the fox's dens, the foxes\u2019 den", ["fox", "den", "fox", "den"]),
        ("O'Neil paid 1,000.50 for v2 (pi 3.14)", ["o'neil", "paid", "1,000.50", "v2", "pi", "3.14"]),
        ("snake_case x 7", ["snake_cas", "x", "7"]),
        ("東京は首都 Tokyo", ["東", "京", "は", "首", "都", "tokyo"]),
        ("Cafe\u0301 Ｆｕｌｌ", ["café", "full"]),
        ("the of a", []),
        (" \0\ud800 ", []),
        ('AND OR NOT "x" (title:y^3) [a TO b] *', ["x", "titl", "y", "3", "b"]),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    assert Analyzer().terms(text) == terms


def test_more_results_wanted_than_there_are_documents(tmp_path: Path) -> None:
    """Case I01: three documents, k=5."""
    query = json.loads((CASES / "I01" / "query.json").read_text())
    found = case_searcher(tmp_path, "I01/corpus.jsonl")
    assert docids(found, query["text"], query["k"]) == ["a"]
    assert docids(found, "gamma beta alpha", query["k"]) == ["a", "b", "c"]


@pytest.mark.parametrize("query", ["", "the of a", "unknown words", "((((" * 5000, '"', "\0", "\ud83c", "日"])
def test_queries_without_a_known_term_have_no_hits(tmp_path: Path, query: str) -> None:
    assert docids(searcher(tmp_path, texts(("a", "alpha beta"), ("b", ""))), query) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("documents", [[], [("e1", ""), ("e2", "   ")], [("s", "the of a")]])
def test_corpora_without_terms_build_with_a_warning(tmp_path: Path, documents: list[tuple[str, str]]) -> None:
    with pytest.warns(UserWarning, match=f"none of {len(documents)} documents holds a word"):
        found = searcher(tmp_path, texts(*documents))
    assert docids(found, "the fox") == []


def test_empty_and_stop_word_documents_are_never_found(tmp_path: Path) -> None:
    """Case I09: some texts are empty."""
    found = case_searcher(tmp_path, "I09/corpus_some.jsonl")
    assert docids(found, "fox") == ["f"]
    assert docids(found, "the fox of a den") == ["f"]


def test_titles_are_searched_and_reasoning_is_not(tmp_path: Path) -> None:
    documents = [Document(docid="a", text="nothing", title="Fox"), Document(docid="b", text="den")]
    found = searcher(tmp_path, documents)
    assert [[hit.docid for hit in hits] for hits in found.search([SearchQuery(query="fox", reasoning="den")], 5)] == [
        ["a"]
    ]


def test_equal_scores_come_in_the_order_of_docids_also_at_the_cut(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(200)]
    documents = texts(*((name, "fox den") for name in reversed(names)), ("best", "fox fox"), ("other", "hill"))
    found = searcher(tmp_path, documents)
    for k in (1, 2, 5, 50, 201, 500):
        assert docids(found, "fox", k) == ["best", *sorted(names)][:k]


def test_the_order_of_words_and_other_queries_change_nothing(tmp_path: Path) -> None:
    documents = texts(
        *((f"d{number}", f"fox {'den ' * number} hill{number % 3} oslo{number % 5}") for number in range(30))
    )
    found = searcher(tmp_path, documents)
    queries = [SearchQuery(query=query) for query in ("fox den hill1 oslo2", "oslo2 hill1 den fox", "den", "fox fox")]
    together = found.search(queries, 7)
    assert together[0] == together[1]
    assert together == [found.search([query], 7)[0] for query in queries]


def test_long_queries_count_up_to_the_limit(tmp_path: Path) -> None:
    found = searcher(tmp_path, texts(("a", "alpha"), ("b", "beta")))
    assert docids(found, "unknown " * 10_000 + "alpha " * MAX_QUERY_TERMS + "beta") == ["a"]
    assert docids(found, "alpha " * (MAX_QUERY_TERMS - 1) + "beta") == ["a", "b"]


WORDS = ["fox", "den", "hill", "oslo"]


@settings(max_examples=25, deadline=None)
@given(
    bodies=st.lists(st.lists(st.sampled_from(WORDS), max_size=6), min_size=1, max_size=8),
    query=st.lists(st.sampled_from([*WORDS, "absent"]), max_size=4),
)
@pytest.mark.filterwarnings("ignore:BM25 will find nothing")
def test_scores_are_those_of_lucene(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[list[str]], query: list[str]
) -> None:
    documents = texts(*((f"d{row}", " ".join(body)) for row, body in enumerate(bodies)))
    [hits] = searcher(tmp_path_factory.mktemp("bm25"), documents).search([SearchQuery(query=" ".join(query))], 100)
    expected = {f"d{row}": score for row, score in enumerate(lucene_scores(bodies, query)) if score > 0}
    assert {hit.docid: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.docid))


def lucene_scores(bodies: Sequence[list[str]], query: list[str], k1: float = 0.9, b: float = 0.4) -> list[float]:
    mean = sum(map(len, bodies)) / len(bodies)

    def score(body: list[str]) -> float:
        total, counts = 0.0, Counter(body)
        for term in query:
            df = sum(term in other for other in bodies)
            idf = math.log(1 + (len(bodies) - df + 0.5) / (df + 0.5))
            if counts[term]:
                total += idf * counts[term] / (counts[term] + k1 * (1 - b + b * len(body) / mean))
        return total

    return [score(body) for body in bodies]


def test_k_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="k: expected at least 1, found 0"):
        searcher(tmp_path, texts(("a", "alpha"))).search([SearchQuery(query="alpha")], 0)


def test_files_hold_no_pickle_and_damage_is_refused(tmp_path: Path) -> None:
    searcher(tmp_path, texts(("a", "alpha")))
    folder, pack = tmp_path / "bm25", CorpusPack.open(tmp_path / "pack")
    assert {path.suffix for path in folder.iterdir()} == {".npy", ".json"}
    data = folder / "data.csc.index.npy"
    data.write_bytes(data.read_bytes()[:-2])
    with pytest.raises(ArtifactError, match="bm25: expected a BM25 index that can be read"):
        Bm25Searcher.open(folder, pack)


def test_an_index_over_other_documents_or_terms_is_refused(tmp_path: Path) -> None:
    searcher(tmp_path / "one", texts(("a", "alpha")))
    searcher(tmp_path / "two", texts(("a", "alpha"), ("b", "beta")))
    with pytest.raises(ArtifactError, match="expected a BM25 index of 2 documents, found one of 1"):
        Bm25Searcher.open(tmp_path / "one" / "bm25", CorpusPack.open(tmp_path / "two" / "pack"))
    settings_file = tmp_path / "two" / "bm25" / "settings.json"
    settings_file.write_text(settings_file.read_text().replace("english-1", "klingon"))
    with pytest.raises(ArtifactError, match="expected terms of analysis 'english-1', found 'klingon'"):
        Bm25Searcher.open(tmp_path / "two" / "bm25", CorpusPack.open(tmp_path / "two" / "pack"))
