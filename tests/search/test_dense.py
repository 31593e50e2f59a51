import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hashed_encoder import HashedEncoder
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.corpus.loaders import SourcedDocument
from agentir.corpus.pack import CorpusPack, write_pack
from agentir.embed.encoder import Vectors
from agentir.errors import ArtifactError, EncoderError, RequestError
from agentir.jsonl import Rejects
from agentir.records import Document, Hit, SearchQuery
from agentir.search.dense import SPARE, DenseSearcher, unit_vectors

CASES = Path(__file__).parents[1] / "data" / "cases"


def pack_of(folder: Path, docids: Sequence[str]) -> CorpusPack:
    documents = (Document(docid=docid, text="") for docid in docids)
    write_pack(
        folder, (SourcedDocument(document=each, file="", line=line) for line, each in enumerate(documents)), Rejects()
    )
    return CorpusPack.open(folder)


def mapped(path: Path, vectors: Any) -> Vectors:
    np.save(path, np.asarray(vectors, dtype=np.float32))
    loaded: Vectors = np.load(path, mmap_mode="r")
    return loaded


def searcher(folder: Path, vectors: Any, docids: Sequence[str] | None = None, num_threads: int = 1) -> DenseSearcher:
    """A searcher over the vectors, its documents named d0, d1, ... unless docids are given."""
    matrix = mapped(folder / "vectors.npy", vectors)
    encoder = HashedEncoder(dim=matrix.shape[1])
    pack = pack_of(folder / "pack", docids if docids is not None else [f"d{row}" for row in range(len(matrix))])
    return DenseSearcher(pack, matrix, encoder, encoder.describe(), "index", num_threads)


def case(name: str) -> Any:
    return json.loads((CASES / name).read_text(encoding="utf-8"))


def brute_force(vectors: Any, query: Any, docids: Sequence[str], k: int) -> list[Hit]:
    scores = np.float32(np.asarray(vectors, dtype=np.float32).astype(np.float64) @ np.float32(query).astype(np.float64))
    hits = [Hit(docid=docid, score=float(score)) for docid, score in zip(docids, scores, strict=True)]
    return sorted(hits, key=lambda hit: (-hit.score, hit.docid))[:k]


def random_units(num_rows: int, dim: int, seed: int = 0) -> Vectors:
    return unit_vectors(np.random.default_rng(seed).standard_normal((num_rows, dim)), "test")


def test_more_results_wanted_than_there_are_documents(tmp_path: Path) -> None:
    """Case I01: three documents, k=5."""
    query = case("I01/query.json")
    [hits] = searcher(tmp_path, case("I01/vectors.json"), ["a", "b", "c"]).search_vectors(
        np.array([query["vector"]]), query["k"]
    )
    assert [hit.docid for hit in hits] == ["a", "c", "b"]
    assert [hit.score for hit in hits] == pytest.approx([1.0, 0.6, 0.0])


def test_query_vectors_of_another_dimension_are_refused_by_name(tmp_path: Path) -> None:
    """Case I03: a query of 3 dimensions on an index of 4."""
    manifest, query = case("I03/manifest.json"), case("I03/query.json")
    index_encoder = {"name": manifest["model"], "dim": manifest["dim"], "space": "s"}
    query_encoder = HashedEncoder("X", dim=len(query["vector"]))
    with pytest.raises(EncoderError, match="runs/index: dimensions differ: index tiny-a/4, query encoder X/3"):
        DenseSearcher(
            pack_of(tmp_path / "p", []), np.zeros((0, 4), np.float32), query_encoder, index_encoder, "runs/index"
        )
    with pytest.raises(EncoderError, match="index: dimensions differ: index hashed/4, query encoder hashed/3"):
        searcher(tmp_path, np.eye(4)).search_vectors(np.array([query["vector"]]), 1)


def test_an_encoder_of_another_space_is_refused(tmp_path: Path) -> None:
    encoder = HashedEncoder(dim=2)
    with pytest.raises(EncoderError, match="made by other-model"):
        described = {"name": "other-model", "dim": 2, "space": "another"}
        DenseSearcher(pack_of(tmp_path / "p", []), np.zeros((0, 2), np.float32), encoder, described, "index")


def test_unit_vectors_make_direction_count_and_not_length(tmp_path: Path) -> None:
    """Case I14: the longest vector must not win."""
    vectors = unit_vectors(np.array(case("I14/vectors.json")), "case")
    [hits] = searcher(tmp_path, vectors, case("I14/docids.json")).search_vectors(np.array([case("I14/query.json")]), 2)
    assert [(hit.docid, hit.score) for hit in hits] == [("exact", 1.0), ("long", pytest.approx(0.7071068))]


def test_self_similarities_are_one_up_to_rounding(tmp_path: Path) -> None:
    vectors = random_units(300, 96)
    for row, hits in enumerate(searcher(tmp_path, vectors).search_vectors(vectors, 1)):
        assert hits[0].docid == f"d{row}"
        assert hits[0].score == pytest.approx(1.0, abs=1e-6)


def test_unit_vectors_keep_zero_rows_and_refuse_what_is_not_finite() -> None:
    vectors = unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0], [1e30, 1e30]]), "test")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0], [1, 0], [0.70710678, 0.70710678]], rtol=1e-6)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(EncoderError, match=r"model: vector 1 holds NaN or infinity \(1 of 2 vectors do\)"):
            unit_vectors(np.array([[1.0, 0.0], [0.0, bad]]), "model")
    with pytest.raises(EncoderError, match=r"expected a matrix of vectors, found an array of shape \(2,\)"):
        unit_vectors(np.array([1.0, 0.0]), "model")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_query_vectors_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    with pytest.raises(EncoderError, match="index: queries of hashed: vector 0 holds NaN or infinity"):
        searcher(tmp_path, np.eye(2)).search_vectors(np.array([[bad, 0.0]]), 1)


def test_an_empty_index_gives_empty_lists(tmp_path: Path) -> None:
    found = searcher(tmp_path, np.zeros((0, 4)))
    assert found.search([SearchQuery(query="fox"), SearchQuery(query="den")], 5) == [[], []]
    assert found.search([], 5) == []


def test_damaged_vectors_are_never_hits(tmp_path: Path) -> None:
    found = searcher(tmp_path, [[np.nan, 0.0], [1.0, 0.0], [np.nan, np.nan]])
    assert found.search_vectors(np.array([[1.0, 0.0]]), 3) == [[Hit(docid="d1", score=1.0)]]


def test_vectors_and_documents_must_be_as_many(tmp_path: Path) -> None:
    """Case I12: two vectors for three documents."""
    state = case("I12/state.json")
    with pytest.raises(ArtifactError, match="index: expected 3 vectors, one a document, found 2"):
        searcher(tmp_path, np.eye(state["vectors_rows"]), state["docids"])


def test_k_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="k: expected at least 1, found 0"):
        searcher(tmp_path, np.eye(2)).search([SearchQuery(query="fox")], 0)


@pytest.mark.parametrize("k", [1, 3, 10, 150, 300])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_hits_are_those_of_brute_force_alone_and_together(tmp_path: Path, k: int, num_threads: int) -> None:
    vectors, queries = random_units(200, 24), random_units(7, 24, seed=1)
    found = searcher(tmp_path, vectors, num_threads=num_threads)
    together = found.search_vectors(queries, k)
    docids = [f"d{row}" for row in range(200)]
    assert together == [brute_force(vectors, query, docids, k) for query in queries]
    assert together == [found.search_vectors(query[None], k)[0] for query in queries]


@pytest.mark.parametrize("num_equal", [2, SPARE + 5, 400])
def test_equal_vectors_come_in_the_order_of_docids_also_at_the_cut(tmp_path: Path, num_equal: int) -> None:
    rows = random_units(3, 33)
    vectors = np.concatenate([rows[:1], np.repeat(rows[1:2], num_equal, axis=0), rows[2:]])
    docids = ["first", *(f"d{number:03}" for number in reversed(range(num_equal))), "last"]
    found = searcher(tmp_path, vectors, docids)
    for k in (1, 2, num_equal - 1, num_equal, num_equal + 2):
        [hits] = found.search_vectors(rows[1:2], k)
        assert hits == brute_force(vectors, rows[1], docids, k)
        assert [hit.docid for hit in hits[:num_equal]] == [f"d{number:03}" for number in range(num_equal)][:k]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 60), k=st.integers(1, 70))
def test_coarse_vectors_full_of_ties_are_found_as_by_brute_force(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, num_rows: int, k: int
) -> None:
    corners = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=3, max_size=3)
    vectors = unit_vectors(np.array([data.draw(corners) for _ in range(num_rows)]), "test")
    queries = unit_vectors(np.array([data.draw(corners) for _ in range(3)]), "test")
    docids = [f"d{row}" for row in data.draw(st.permutations(range(num_rows)))]
    found = searcher(tmp_path_factory.mktemp("dense"), vectors, docids).search_vectors(queries, k)
    assert found == [brute_force(vectors, query, docids, k) for query in queries]


def test_search_leaves_the_threads_of_the_process_as_they_were(tmp_path: Path) -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        searcher(tmp_path, np.eye(4, dtype=np.float32)).search_vectors(np.eye(4, dtype=np.float32)[:1], 1)
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)
