"""Gold documents that questions name by title or URL, found in every kind of corpus."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentir.drsynth.gold import resolve_gold, url_key
from agentir.jsonl import Rejects
from agentir.records import QAItem
from agentir.search.builder import build_index

CORPUS: list[dict[str, Any]] = [
    {"docid": "fell", "title": "Ana  Fell", "text": "She painted."},
    {"docid": "lind", "title": "BO LIND\u00a0", "text": "He painted."},
    {"docid": "lind#2", "title": "Bo Lind", "text": "He drew."},
    {"docid": "aller", "title": "Aller", "text": "A river.", "url": "http://www.Wiki.example/wiki/Aller_(river)/"},
    {"docid": "none", "text": "Nobody asks for this."},
]


def question(
    qid: str, titles: tuple[str, ...] = (), urls: tuple[str, ...] = (), docids: tuple[str, ...] = ()
) -> QAItem:
    return QAItem(qid=qid, question="?", answers=("x",), gold_titles=titles, gold_urls=urls, gold_docids=docids)


def corpus_at(tmp_path: Path, kind: str, rows: list[dict[str, Any]] = CORPUS) -> Path:
    (tmp_path / "beir").mkdir()
    file = tmp_path / "beir" / "corpus.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if kind == "index":
        build_index(tmp_path / "index", file)
        return tmp_path / "index"
    return file.parent if kind == "beir" else file


@pytest.mark.parametrize("kind", ["index", "file", "beir"])
def test_titles_and_urls_are_found_in_an_index_a_file_and_a_folder(tmp_path: Path, kind: str) -> None:
    items = [
        question("titles", titles=("ana fell", "Bo Lind", "Cy Moe")),
        question("both", titles=("\uff21na Fell",), urls=("https://wiki.example/wiki/Aller_%28river%29#Course", "w.example/")),
        question("nothing", titles=("Cy Moe",)),
        question("given", titles=("Ana Fell",), docids=("elsewhere",)),
        question("unnamed"),
    ]  # fmt: skip
    rejects = Rejects()
    resolved, counts = resolve_gold(items, corpus_at(tmp_path, kind), rejects)
    assert {item.qid: item.gold_docids for item in resolved} == {
        "titles": ("fell", "lind", "lind#2"),
        "both": ("fell", "aller"),
        "nothing": (),
        "given": ("elsewhere",),
        "unnamed": (),
    }
    assert [item.gold_titles for item in resolved] == [item.gold_titles for item in items]
    assert counts == {
        "questions_with_gold_found_by_name": 2,
        "questions_with_no_gold_found_by_name": 1,
        "gold_titles_not_in_corpus": 1,
        "gold_urls_not_in_corpus": 1,
        "gold_names_of_several_documents": 1,
    }
    assert not rejects.items


def test_the_corpus_is_not_read_where_no_question_names_gold(tmp_path: Path) -> None:
    items = [question("given", titles=("Ana Fell",), docids=("d",)), question("unnamed")]
    assert resolve_gold(items, tmp_path / "no such corpus", Rejects()) == (items, {})


def test_corpus_lines_that_do_not_fit_are_noted(tmp_path: Path) -> None:
    corpus = corpus_at(
        tmp_path, "file", [{"docid": "a", "title": "A", "text": 1}, {"docid": "b", "title": "A", "text": "t"}]
    )
    rejects = Rejects()
    [item], _ = resolve_gold([question("q", titles=("a",))], corpus, rejects)
    assert item.gold_docids == ("b",)
    assert [(reject.line, reject.field) for reject in rejects.items] == [(1, "text")]


@pytest.mark.parametrize(
    "url",
    [
        "http://www.de.wiki.example/wiki/Sportforum_H\u00f6he",
        "//DE.wiki.example/wiki/Sportforum_H%C3%B6he/",
        "de.wiki.example/wiki/Sportforum Ho\u0308he ",
        "https://de.wiki.example/wiki/Sportforum%20H%C3%B6he#Lage",
    ],
)
def test_urls_of_one_page_have_one_key(url: str) -> None:
    assert url_key(url) == "de.wiki.example/wiki/Sportforum_H\u00f6he"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://w.example/wiki/C%23", "https://w.example/wiki/C"),
        ("https://w.example/wiki/aller", "https://w.example/wiki/Aller"),
        ("https://w.example/?id=1", "https://w.example/?id=2"),
        ("https://en.w.example/a", "https://de.w.example/a"),
        ("w.example:80/a", "v.example:80/a"),
    ],
)
def test_urls_of_different_pages_have_different_keys(one: str, other: str) -> None:
    assert url_key(one) != url_key(other)


@pytest.mark.parametrize("url", ["http://[::1", "%", "%zz%ff", "#", "://", "\n"])
def test_what_is_hardly_a_url_has_a_key_too(url: str) -> None:
    assert url_key(url) == url_key(url + "#part")
