import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.corpus.loaders import SourcedDocument, read_sourced
from agentir.corpus.pack import CorpusPack, Facet, PackReport, write_pack
from agentir.errors import ArtifactError, InputError
from agentir.jsonl import Rejects
from agentir.records import Chunk, Document

CASES = Path(__file__).parents[1] / "data" / "cases"
DOCUMENTS = [
    Document(
        docid="b", text="Two foxes. One den.", title="Foxes", url="https://x/b", metadata={"year": 1999, "ok": True}
    ),
    Document(docid="ä", text="", metadata={"year": 2001, "tags": ["a"], "note": None}),
    Document(docid="a", text="日本語 \0 text", title="日\0本", metadata={"year": "unknown", "ok": False}),
]


def sourced(documents: Iterable[Document]) -> Iterable[SourcedDocument]:
    return (SourcedDocument(document=each, file="memory", line=line) for line, each in enumerate(documents, start=1))


def packed(folder: Path, documents: Iterable[Document], chunk_words: int = 0) -> CorpusPack:
    rejects = Rejects()
    write_pack(folder, sourced(documents), rejects, chunk_words)
    rejects.check()
    return CorpusPack.open(folder)


def test_documents_come_back_as_they_were(tmp_path: Path) -> None:
    with packed(tmp_path / "pack", DOCUMENTS) as pack:
        assert len(pack) == 3
        assert pack.documents(0, len(pack)) == DOCUMENTS
        assert [pack.document(row) for row in range(3)] == DOCUMENTS
        assert [pack.docid(row) for row in range(3)] == ["b", "ä", "a"]
        assert [pack.row(docid) for docid in ("a", "b", "ä", "", "c", "a\0", "\ud800")] == [
            2,
            0,
            1,
            None,
            None,
            None,
            None,
        ]
        assert pack.titles([2, 0, 2]) == ["日\0本", "Foxes", "日\0本"]
        assert pack.title(1) == ""
        assert pack.text(2) == "日本語 \0 text"
        assert pack.documents(1, 99) == DOCUMENTS[1:]
        assert pack.find(["a", "c", "b", "a"]) == [DOCUMENTS[0], DOCUMENTS[2]]
        assert pack.docid_ranks.tolist() == [1, 2, 0]
        assert pack.report == PackReport(num_documents=3, num_empty=1, empty_docids=("ä",), num_chunks=0)


def test_facets_count_metadata_fields_by_type(tmp_path: Path) -> None:
    with packed(tmp_path / "pack", DOCUMENTS) as pack:
        assert pack.facets() == [
            Facet(field="ok", type="boolean", num_docs=2, num_values=2),
            Facet(field="tags", type="array", num_docs=1, num_values=1),
            Facet(field="year", type="integer", num_docs=2, num_values=2),
            Facet(field="year", type="text", num_docs=1, num_values=1),
        ]


@pytest.mark.parametrize("row", [-1, 3])
def test_rows_out_of_range_are_no_documents(tmp_path: Path, row: int) -> None:
    with packed(tmp_path / "pack", DOCUMENTS, chunk_words=2) as pack:
        for read in (pack.docid, pack.text, pack.title, pack.document, pack.chunks):
            with pytest.raises(IndexError, match=f"row {row} of a corpus of 3 documents"):
                read(row)


def test_chunks_are_offsets_into_their_documents(tmp_path: Path) -> None:
    with packed(tmp_path / "pack", DOCUMENTS, chunk_words=2) as pack:
        assert pack.chunks(0) == [
            Chunk(chunkid="b#0", docid="b", start=0, end=11),
            Chunk(chunkid="b#1", docid="b", start=11, end=19),
        ]
        assert pack.chunks(1) == []
        assert [pack.text(2)[chunk.start : chunk.end] for chunk in pack.chunks(2)] == ["日本", "語 \0 ", "text"]
        assert pack.report.num_chunks == 5


def test_a_pack_without_chunks_says_how_to_get_them(tmp_path: Path) -> None:
    with packed(tmp_path / "pack", DOCUMENTS) as pack, pytest.raises(ArtifactError, match="chunk_words above 0"):
        pack.chunks(0)


def test_an_empty_corpus_is_a_pack(tmp_path: Path) -> None:
    with packed(tmp_path / "pack", [], chunk_words=5) as pack:
        assert len(pack) == 0
        assert pack.row("a") is None
        assert pack.documents(0, 10) == []
        assert pack.facets() == []


def test_repeated_docids_are_refused_with_both_lines(tmp_path: Path) -> None:
    """Case I05: the same docid with another text."""
    corpus = CASES / "I05" / "corpus.jsonl"
    rejects = Rejects()
    write_pack(tmp_path / "pack", read_sourced(corpus, rejects), rejects)
    with pytest.raises(
        InputError, match=r"corpus.jsonl:3: docid: expected a docid not used before, found 'd1' \(first at line 1\)"
    ):
        rejects.check()


def test_of_repeated_docids_the_first_stays_where_lines_are_set_aside(tmp_path: Path) -> None:
    rejects = Rejects(set_aside=True)
    report = write_pack(tmp_path / "pack", read_sourced(CASES / "I05" / "corpus.jsonl", rejects), rejects)
    assert (report.num_documents, len(rejects.items)) == (2, 1)
    with CorpusPack.open(tmp_path / "pack") as pack:
        assert [pack.document(row).text for row in range(len(pack))] == ["first version", "other"]


def test_docids_of_any_form_are_keys_and_never_paths(tmp_path: Path) -> None:
    """Case I07: spaces, slashes, zeros, unicode and quotes."""
    corpus = CASES / "I07" / "corpus.jsonl"
    docids = [json.loads(line)["docid"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    rejects = Rejects()
    write_pack(tmp_path / "inner" / "pack", read_sourced(corpus, rejects), rejects)
    with CorpusPack.open(tmp_path / "inner" / "pack") as pack:
        assert [pack.docid(row) for row in range(len(pack))] == docids
        assert [pack.row(docid) for docid in docids] == list(range(7))
        assert [pack.document(row).docid for row in range(7)] == docids
    assert os.listdir(tmp_path) == ["inner"]
    assert os.listdir(tmp_path / "inner") == ["pack"]


def test_hostile_texts_come_back_as_they_were_read(tmp_path: Path) -> None:
    """Case S24: a lone surrogate, a NUL and chat markers."""
    rejects = Rejects()
    documents = [each.document for each in read_sourced(CASES / "S24" / "docs.jsonl", rejects)]
    with packed(tmp_path / "pack", documents, chunk_words=3) as pack:
        assert pack.documents(0, 3) == documents
        assert (tmp_path / "pack" / "texts.bin").read_bytes().decode("utf-8") == "".join(
            each.text for each in documents
        )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ANY_DOCUMENT = st.builds(
    Document,
    docid=st.text(min_size=1),
    text=st.text(),
    title=st.text(),
    url=st.text(),
    metadata=st.dictionaries(st.text(), JSON_VALUES, max_size=3),
)


@settings(max_examples=50, deadline=None)
@given(documents=st.lists(ANY_DOCUMENT, max_size=8, unique_by=lambda document: document.docid))
def test_any_documents_come_back_as_they_were(tmp_path_factory: Any, documents: list[Document]) -> None:
    with packed(tmp_path_factory.mktemp("any") / "pack", documents, chunk_words=4) as pack:
        assert pack.documents(0, len(pack)) == documents
        assert [pack.row(document.docid) for document in documents] == list(range(len(documents)))
        by_rank = sorted(range(len(documents)), key=lambda row: pack.docid_ranks[row])
        assert [documents[row].docid for row in by_rank] == sorted(document.docid for document in documents)
        for row, document in enumerate(documents):
            assert "".join(document.text[chunk.start : chunk.end] for chunk in pack.chunks(row)) == document.text


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("texts.bin", lambda path: path.write_bytes(path.read_bytes()[:-1]), r"texts.bin: expected 35 bytes, found 34"),
        ("docids.bin", lambda path: path.write_bytes(b"b"), r"docids.bin: expected 4 bytes, found 1"),
        ("offsets.npy", lambda path: np.save(path, np.array([0, 4])), r"offsets.npy: expected 3 texts .*, found 1"),
        (
            "docid_offsets.npy",
            lambda path: np.save(path, np.arange(5)),
            r"docid_offsets.npy: expected 3 docids .*, found 4",
        ),
        ("docid_order.npy", lambda path: path.write_bytes(path.read_bytes()[:-4]), "docid_order.npy: cut off"),
        ("docid_ranks.npy", lambda path: path.unlink(), "docid_ranks.npy: no such file"),
        (
            "metadata.sqlite",
            lambda path: path.write_bytes(b"no database, but some bytes"),
            "metadata.sqlite: not a readable",
        ),
        ("metadata.sqlite", lambda path: path.unlink(), "metadata.sqlite: not a readable"),
        ("texts.bin", lambda path: path.unlink(), "texts.bin: no such file"),
        ("pack.json", lambda path: path.unlink(), "pack.json: no such file"),
        ("pack.json", lambda path: path.write_text("{}"), "pack.json: not the counts"),
    ],
)
def test_damage_is_refused_on_opening(tmp_path: Path, name: str, change: Any, problem: str) -> None:
    packed(tmp_path / "pack", DOCUMENTS).close()
    change(tmp_path / "pack" / name)
    with pytest.raises(ArtifactError, match=problem):
        CorpusPack.open(tmp_path / "pack")


def test_many_threads_may_read_at_once(tmp_path: Path) -> None:
    documents = [Document(docid=f"d{number}", text=f"text {number}", title=f"title {number}") for number in range(50)]
    wrong: list[int] = []
    with packed(tmp_path / "pack", documents) as pack:

        def read() -> None:
            wrong.extend(row for _ in range(5) for row in range(50) if pack.document(row) != documents[row])

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_closed_under_threads_that_read_it_only_their_reads_fail(tmp_path: Path) -> None:
    packed(tmp_path / "pack", [Document(docid=str(row), text="word " * 50) for row in range(50)]).close()
    code = """
import sqlite3, sys, threading
from agentir.corpus.pack import CorpusPack

def read(pack):
    try:
        while True:
            pack.documents(0, 50)
    except (sqlite3.ProgrammingError, ValueError):
        pass

for _ in range(20):
    pack = CorpusPack.open(sys.argv[1])
    threads = [threading.Thread(target=read, args=[pack]) for _ in range(4)]
    for thread in threads:
        thread.start()
    pack.close()
    for thread in threads:
        thread.join()
"""
    # Where this fails it crashes the process, so it has one of its own.
    command = [sys.executable, "-c", code, str(tmp_path / "pack")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_opening_takes_no_longer_for_a_large_corpus(tmp_path: Path) -> None:
    documents = (Document(docid=f"document-{number}", text="word " * 20) for number in range(100_000))
    packed(tmp_path / "pack", documents).close()
    began = time.perf_counter()
    with CorpusPack.open(tmp_path / "pack") as pack:
        assert pack.row("document-77777") == 77777
        assert time.perf_counter() - began < 0.5
