import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hashed_encoder import HashedEncoder

from agentir.artifacts import FolderLock, fingerprint
from agentir.errors import ArtifactError, ConfigError, EncoderError, InputError, LockedError
from agentir.records import SearchQuery
from agentir.search.builder import build_index
from agentir.search.index import Index

CASES = Path(__file__).parents[1] / "data" / "cases"
FOX = SearchQuery(query="fox")


def write_corpus(path: Path, *texts: str) -> Path:
    rows = [{"docid": f"d{row}", "text": text, "row": row} for row, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def versions(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_dir()}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl", "red fox", "", "blue den", "fox den fox")


@pytest.fixture
def out(tmp_path: Path, corpus: Path) -> Path:
    """A folder with an index of documents, vectors, BM25 and chunks."""
    build_index(tmp_path / "index", corpus, encoder=HashedEncoder(), chunk_words=2)
    return tmp_path / "index"


def test_an_index_holds_documents_vectors_and_bm25(out: Path) -> None:
    encoder = HashedEncoder()
    with Index.open(out) as index:
        assert [document.text for document in index.pack.documents(0, 9)] == ["red fox", "", "blue den", "fox den fox"]
        assert index.has_vectors
        assert index.has_bm25
        assert index.encoder_name == "hashed"
        assert index.encoder == encoder.describe()
        np.testing.assert_allclose(index.vectors, encoder.encode_documents(index.pack.documents(0, 4)), atol=1e-7)
        assert not index.vectors.flags.writeable
        assert {hit.docid for hit in index.bm25().search([FOX], 9)[0]} == {"d0", "d3"}
        assert len(index.dense(encoder).search([FOX], 9)[0]) == 4
        assert index.version == (out / "CURRENT").read_text().strip()
        assert Index.verify(out) == []
        report = index.report
    assert (report.num_documents, report.num_empty, report.empty_docids, report.num_chunks) == (4, 1, ("d1",), 4)
    assert (report.num_set_aside, report.num_terms, report.num_zero_vectors, report.kept) == (0, 4, 1, ())
    assert list(report.seconds) == ["pack", "bm25", "vectors.npy"]
    assert versions(out) == {index.version}


def test_an_index_for_bm25_only(tmp_path: Path, corpus: Path) -> None:
    build_index(tmp_path / "index", corpus)
    with Index.open(tmp_path / "index") as index:
        assert not index.has_vectors
        assert index.encoder is None
        for ask in (lambda: index.vectors, lambda: index.encoder_name, lambda: index.dense(HashedEncoder())):
            with pytest.raises(ArtifactError, match="has no vectors; build it with an encoder"):
                ask()


def test_an_index_for_dense_search_only(tmp_path: Path, corpus: Path) -> None:
    build_index(tmp_path / "index", corpus, encoder=HashedEncoder(), bm25=False)
    with Index.open(tmp_path / "index") as index, pytest.raises(ArtifactError, match="build it with bm25 = true"):
        index.bm25()


def test_an_empty_corpus_is_an_index(tmp_path: Path) -> None:
    encoder = HashedEncoder()
    with pytest.warns(UserWarning, match="BM25 will find nothing"):
        build_index(tmp_path / "index", write_corpus(tmp_path / "corpus.jsonl"), encoder=encoder)
    with Index.open(tmp_path / "index") as index:
        assert index.bm25().search([FOX], 5) == [[]]
        assert index.dense(encoder).search([FOX], 5) == [[]]


def test_documents_that_are_all_empty(tmp_path: Path) -> None:
    """Case I09: every text is empty."""
    encoder = HashedEncoder()
    with pytest.warns(UserWarning, match="BM25 will find nothing"):
        built = build_index(tmp_path / "index", CASES / "I09" / "corpus_all_empty.jsonl", encoder=encoder)
    assert (built.report.num_empty, built.report.empty_docids) == (2, ("e1", "e2"))
    with Index.open(tmp_path / "index") as index:
        assert index.bm25().search([FOX], 5) == [[]]
        assert [hit.score for hit in index.dense(encoder).search([FOX], 5)[0]] == [0.0, 0.0]


def test_empty_documents_are_reported_and_can_be_read(tmp_path: Path) -> None:
    """Case I09: some texts are empty."""
    built = build_index(tmp_path / "index", CASES / "I09" / "corpus_some.jsonl")
    assert (built.report.num_empty, built.report.empty_docids) == (1, ("e1",))
    with Index.open(tmp_path / "index") as index:
        assert index.pack.row("e1") == 0
        assert index.pack.document(0).text == ""


def test_docids_of_any_form_come_back_from_searches(tmp_path: Path) -> None:
    """Case I07: spaces, slashes, zeros, unicode and quotes; none is used as a path."""
    out, encoder = tmp_path / "outer" / "index", HashedEncoder()
    build_index(out, CASES / "I07" / "corpus.jsonl", encoder=encoder)
    lines = (CASES / "I07" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    with Index.open(out) as index:
        for row in map(json.loads, lines):
            [[best]] = index.dense(encoder).search([SearchQuery(query=row["text"])], 1)
            assert best.docid == row["docid"]
            assert [hit.docid for hit in index.bm25().search([SearchQuery(query=row["text"])], 9)[0]] == [row["docid"]]
    assert os.listdir(tmp_path / "outer") == ["index"]
    assert os.listdir(tmp_path) == ["outer"]


def test_folders_with_spaces_and_accents(tmp_path: Path) -> None:
    out = tmp_path / "Índice mit Leerzeichen 100% #1?"
    build_index(out, write_corpus(tmp_path / "cörpus 1.jsonl", "fox"))
    with Index.open(out) as index:
        assert [hit.docid for hit in index.bm25().search([FOX], 1)[0]] == ["d0"]


def test_repeated_docids_stop_the_build_and_leave_nothing(tmp_path: Path) -> None:
    """Case I05: the same docid with another text."""
    corpus = tmp_path / "corpus.jsonl"
    shutil.copy(CASES / "I05" / "corpus.jsonl", corpus)
    with pytest.raises(InputError, match=r"corpus.jsonl:3: docid: .* found 'd1' \(first at line 1\)"):
        build_index(tmp_path / "index", corpus)
    assert versions(tmp_path / "index") == set()
    write_corpus(corpus, "mended")
    assert build_index(tmp_path / "index", corpus).report.num_documents == 1


def test_lines_set_aside_are_counted_and_kept(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((CASES / "I05" / "corpus.jsonl").read_bytes() + b'{"docid": null, "text": "t"}\nbroken\n')
    built = build_index(tmp_path / "index", corpus, on_bad_line="set_aside")
    assert (built.report.num_documents, built.report.num_set_aside) == (2, 3)
    assert [json.loads(line)["line"] for line in (built.folder / "rejected.jsonl").open()] == [3, 4, 5]
    assert Index.verify(tmp_path / "index") == []


def test_the_same_build_again_does_nothing(tmp_path: Path, corpus: Path, out: Path) -> None:
    before = versions(out)
    encoder = HashedEncoder()
    built = build_index(out, corpus, encoder=encoder, chunk_words=2)
    assert not built.is_new
    assert encoder.num_encoded == 0
    assert versions(out) == before == {built.folder.name}


@pytest.mark.parametrize(
    "encoder",
    [
        HashedEncoder("hashed again"),
        HashedEncoder(max_query_tokens=9, template_hash="another"),
    ],
)
def test_another_name_or_query_template_of_the_same_encoder_needs_no_new_vectors(
    corpus: Path, out: Path, encoder: HashedEncoder
) -> None:
    before = versions(out)
    built = build_index(out, corpus, encoder=encoder, chunk_words=2)
    assert (built.is_new, encoder.num_encoded) == (False, 0)
    assert versions(out) == before
    with Index.open(out) as index:
        assert index.encoder == encoder.describe()
        assert index.encoder_name == encoder.name
    assert Index.verify(out) == []


@pytest.mark.parametrize(
    "encoder", [HashedEncoder(dim=8), HashedEncoder(backend="openvino"), HashedEncoder(max_document_tokens=9)]
)
def test_what_decides_the_vectors_makes_another_version(corpus: Path, out: Path, encoder: HashedEncoder) -> None:
    assert build_index(out, corpus, encoder=encoder, chunk_words=2).is_new
    assert encoder.num_encoded == 4


def test_a_model_folder_is_found_again_from_any_working_folder(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "models")
    build_index(tmp_path / "index", corpus, encoder=HashedEncoder("small/"))
    with Index.open(tmp_path / "index") as index:
        assert index.encoder_name == str(tmp_path / "models" / "small")
    (tmp_path / "models" / "small").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert not build_index(tmp_path / "index", corpus, encoder=HashedEncoder("./moved")).is_new
    with Index.open(tmp_path / "index") as index:
        assert index.encoder_name == str(tmp_path / "moved")


def test_another_build_is_swapped_in_and_readers_keep_theirs(tmp_path: Path, corpus: Path, out: Path) -> None:
    first = fingerprint(out)
    with Index.open(out) as old:
        before = old.bm25().search([FOX], 9)
        write_corpus(corpus, "only den")
        built = build_index(out, corpus, encoder=HashedEncoder())
        assert built.is_new
        with Index.open(out) as new:
            assert new.version == built.folder.name != old.version
            assert len(new.pack) == 1
        assert old.bm25().search([FOX], 9) == before
        assert versions(out) == {old.version, built.folder.name}
        assert fingerprint(out) != first
        write_corpus(corpus, "red fox", "", "blue den", "fox den fox")
        again = build_index(out, corpus, encoder=HashedEncoder(), chunk_words=2)
    assert (again.is_new, again.folder.name) == (False, old.version)
    assert fingerprint(out) == first
    with Index.open(out) as index:
        assert index.version == old.version


def test_a_damaged_version_is_made_anew(corpus: Path, out: Path) -> None:
    with Index.open(out) as index:
        (index.folder / "vectors.npy").write_bytes(b"cut")
    built = build_index(out, corpus, encoder=HashedEncoder(), chunk_words=2)
    assert built.is_new
    assert Index.verify(out) == []


def test_a_second_process_may_not_build(corpus: Path, out: Path) -> None:
    lock = FolderLock(out)
    with pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        build_index(out, corpus)
    lock.release()


def test_folders_with_other_files_are_left_alone(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="holds files of another origin"):
        build_index(tmp_path / "home", corpus)


def test_what_cannot_make_an_index_is_refused_before_any_work(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to search with"):
        build_index(tmp_path / "index", corpus, bm25=False)
    with pytest.raises(EncoderError, match="tuned: tuned to encode queries against the vectors of another model"):
        build_index(tmp_path / "index", corpus, encoder=HashedEncoder("tuned", encodes_documents=False))
    with pytest.raises(InputError, match=r"missing.jsonl: no such file"):
        build_index(tmp_path / "index", tmp_path / "missing.jsonl")
    assert not (tmp_path / "index").exists()


def test_encoders_that_give_too_few_or_broken_vectors_are_refused(tmp_path: Path, corpus: Path) -> None:
    class Short(HashedEncoder):
        def encode_documents(self, documents):  # type: ignore[no-untyped-def]
            return super().encode_documents(documents)[1:]

    class Broken(HashedEncoder):
        def encode_documents(self, documents):  # type: ignore[no-untyped-def]
            return super().encode_documents(documents) * np.nan

    with pytest.raises(EncoderError, match=r"hashed: expected vectors of shape \(4, 16\), found \(3, 16\)"):
        build_index(tmp_path / "short", corpus, encoder=Short())
    with pytest.raises(EncoderError, match="hashed, documents from row 0: vector 0 holds NaN"):
        build_index(tmp_path / "broken", corpus, encoder=Broken())


def test_folders_without_a_finished_index_are_refused(tmp_path: Path, corpus: Path, out: Path) -> None:
    with pytest.raises(ArtifactError, match="expected an index folder with CURRENT, found none"):
        Index.open(tmp_path / "missing")
    (tmp_path / "begun" / "building").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="unfinished; run the same agentir index build again"):
        Index.open(tmp_path / "begun")
    (out / "CURRENT").write_text("../elsewhere\n")
    with pytest.raises(ArtifactError, match=r"expected the name of a folder beside it, found '../elsewhere'"):
        Index.open(out)
    (out / "CURRENT").write_text("gone\n")
    with pytest.raises(ArtifactError, match="gone: expected a finished index artifact"):
        Index.open(out)


def test_vectors_and_documents_that_disagree_are_refused(tmp_path: Path) -> None:
    """Case I12: two vectors for three documents, first without a manifest, then with one that fits the files."""
    state = json.loads((CASES / "I12" / "state.json").read_text())
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"docid": docid, "text": "t"}) + "\n" for docid in state["docids"]))
    folder = build_index(tmp_path / "index", corpus, encoder=HashedEncoder()).folder
    np.save(folder / "vectors.npy", np.eye(16, dtype=np.float32)[: state["vectors_rows"]])
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"expected a finished index artifact with manifest.json, found none"):
        Index.open(tmp_path / "index")
    manifest["files"]["vectors.npy"]["size"] = (folder / "vectors.npy").stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"vectors.npy holds 2 vectors, pack holds 3 documents"):
        Index.open(tmp_path / "index")


@pytest.mark.parametrize("name", ["vectors.npy", "pack/texts.bin", "pack/metadata.sqlite", "bm25/data.csc.index.npy"])
def test_files_cut_off_are_named(out: Path, name: str) -> None:
    with Index.open(out) as index:
        path = index.folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=f"{path}: expected .* bytes, found"):
        Index.open(out)


def test_one_changed_byte_is_found_by_verifying(out: Path) -> None:
    with Index.open(out) as index:
        path = index.folder / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    Index.open(out).close()
    [fault] = Index.verify(out)
    assert fault.startswith(f"{path}: expected sha256 ")
