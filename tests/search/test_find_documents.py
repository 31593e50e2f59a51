"""Documents by id, from everything that holds a corpus."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentir.errors import ArtifactError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.builder import build_index
from agentir.search.documents import find_documents

ROWS: list[dict[str, Any]] = [
    {"docid": 12, "text": "twelve"},
    {"docid": "x", "text": ""},
    {"docid": "013", "text": "thirteen", "title": "T"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def indexed(tmp_path: Path) -> Path:
    build_index(tmp_path / "index", write(tmp_path / "corpus.jsonl", ROWS))
    return tmp_path / "index"


@pytest.mark.parametrize("kind", ["index", "corpus.jsonl", "corpus.jsonl.gz", "beir", "beir.gz"])
def test_documents_are_found_wherever_a_corpus_is_in_its_order(tmp_path: Path, kind: str) -> None:
    if kind == "index":
        path = indexed(tmp_path)
    elif kind.startswith("beir"):
        path = write(tmp_path / "beir" / f"corpus.jsonl{kind.removeprefix('beir')}", ROWS).parent
    else:
        path = write(tmp_path / kind, ROWS)
    rejects = Rejects()
    found = find_documents(path, ["013", "13", "12", "12"], rejects)
    assert list(found.items()) == [
        ("12", Document(docid="12", text="twelve")),
        ("013", Document(docid="013", text="thirteen", title="T")),
    ]
    assert not rejects.items


def test_a_repeated_id_is_refused_where_it_is_looked_for(tmp_path: Path) -> None:
    rows = [
        {"docid": docid, "text": text} for docid, text in (("a", "1"), ("b", "1"), ("a", "1"), ("a", "2"), ("b", "2"))
    ]
    corpus = write(tmp_path / "corpus.jsonl", rows)
    rejects = Rejects()
    assert find_documents(corpus, {"a"}, rejects) == {"a": Document(docid="a", text="1")}
    assert [str(item) for item in rejects.items] == [
        f"{corpus}:{line}: docid: expected a docid not used before, found 'a' (first at line 1)" for line in (3, 4)
    ]


def test_lines_that_do_not_fit_are_noted(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.jsonl", [{"docid": "a", "text": 1}, {"docid": "b", "text": "1"}])
    rejects = Rejects()
    assert list(find_documents(corpus, {"a", "b"}, rejects)) == ["b"]
    assert [(item.line, item.field) for item in rejects.items] == [(1, "text")]


def test_an_unfinished_index_says_so(tmp_path: Path) -> None:
    (tmp_path / "index" / "building").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="this index is unfinished"):
        find_documents(tmp_path / "index", {"a"}, Rejects())
