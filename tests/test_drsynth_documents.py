import json
from pathlib import Path

from agentir.drsynth.documents import find_documents
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.builder import build_index


def test_documents_are_found_in_a_file_and_in_an_index(tmp_path: Path) -> None:
    rows = [
        {"docid": 12, "text": "twelve"},
        {"docid": "013", "text": "thirteen", "title": "T"},
        {"docid": "x", "text": ""},
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    build_index(tmp_path / "index", corpus)
    expected = {
        "12": Document(docid="12", text="twelve"),
        "013": Document(docid="013", text="thirteen", title="T"),
    }
    for path in (corpus, tmp_path / "index"):
        rejects = Rejects()
        assert find_documents(path, {"12", "013", "13"}, rejects) == expected
        assert not rejects.items


def test_another_text_for_an_id_is_refused_where_the_id_is_looked_for(tmp_path: Path) -> None:
    rows = [{"docid": "a", "text": "1"}, {"docid": "b", "text": "1"}, {"docid": "a", "text": "1"}] + [
        {"docid": docid, "text": "2"} for docid in "ab"
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rejects = Rejects()
    assert find_documents(corpus, {"a"}, rejects) == {"a": Document(docid="a", text="1")}
    assert [(item.line, item.found) for item in rejects.items] == [(4, "'a'")]
    assert "line 1 has another" in rejects.items[0].expected
