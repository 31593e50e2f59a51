"""The layouts that question sets are published in. The rows here are made up; their fields are those of

- WebShaper: Alibaba-NLP/DeepResearch, WebAgent/WebShaper/data/webshaper.500.jsonl
- MuSiQue: StonyBrookNLP/musique, raw_data_to_official_format.py and evaluate_v1.0.py
- HotpotQA: hotpotqa/hotpot, README.md (JSON Format); columns as in the exports of hotpotqa/hotpot_qa on Hugging Face
- 2WikiMultihopQA: Alab-NII/2wikimultihop, README.md (Dataset Contents)
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentir.corpus.qa import read_questions
from agentir.errors import InputError
from agentir.jsonl import Rejects
from agentir.records import QAItem

WEBSHAPER: dict[str, Any] = {
    "id": "0a1b",
    "question": "Which river does the ferry of the poet's birthplace cross?",
    "answer": "the Aller",
    "formalization": [["V@X", "crosses", "?"], ["V@X", "is a", "C@ferry"]],
    "urls": ["https://en.wikipedia.org/wiki/Aller_%28river%29", " https://ferries.example/aller/ ", "",
             "https://en.wikipedia.org/wiki/Aller_%28river%29"],
}  # fmt: skip
MUSIQUE: dict[str, Any] = {
    "id": "2hop__11_22",
    "paragraphs": [
        {"idx": 0, "title": "Lake Sem", "paragraph_text": "It is deep.", "is_supporting": False},
        {"idx": 1, "title": "River Ott", "paragraph_text": "It ends in the sea of Bor.", "is_supporting": True},
        {"idx": 2, "title": "Sea of Bor", "paragraph_text": "It is 90 m deep.", "is_supporting": True},
    ],
    "question": "How deep is the sea that the Ott ends in?",
    "question_decomposition": [
        {"id": 11, "question": "Ott >> ends in", "answer": "Sea of Bor", "paragraph_support_idx": 1},
        {"id": 22, "question": "#1 >> depth", "answer": "90 m", "paragraph_support_idx": 2},
    ],
    "answer": "90 m",
    "answer_aliases": ["ninety metres", "90 m"],
    "answerable": False,
}
HOTPOT: dict[str, Any] = {
    "_id": "5a7e",
    "answer": "yes",
    "question": "Were Ana Fell and Bo Lind both painters?",
    "supporting_facts": [["Ana Fell", 0], ["Bo Lind", 0], ["Bo Lind", 2]],
    "context": [["Ana Fell", ["She painted."]], ["Oslo", ["A city."]], ["Bo Lind", ["He painted.", "He", "drew."]]],
    "type": "comparison",
    "level": "hard",
}
HOTPOT_COLUMNS: dict[str, Any] = {
    **{key: value for key, value in HOTPOT.items() if key != "_id"},
    "id": "5a7e",
    "supporting_facts": {"title": ["Ana Fell", "Bo Lind", "Bo Lind"], "sent_id": [0, 0, 2]},
    "context": {"title": ["Ana Fell", "Bo Lind"], "sentences": [["She painted."], ["He painted.", "He", "drew."]]},
}
TWO_WIKI: dict[str, Any] = {
    **HOTPOT,
    "_id": "8e3f",
    "type": "bridge_comparison",
    "evidences": [["Ana Fell", "occupation", "painter"]],
    "evidences_id": [["Q1", "Q2", "Q3"]],
    "entity_ids": "Q1_Q4",
    "answer_id": "Q5",
}
del TWO_WIKI["level"]
READ = {
    "webshaper": QAItem(
        qid="0a1b",
        question=WEBSHAPER["question"],
        answers=("the Aller",),
        gold_urls=("https://en.wikipedia.org/wiki/Aller_%28river%29", "https://ferries.example/aller/"),
    ),
    "musique": QAItem(
        qid="2hop__11_22",
        question=MUSIQUE["question"],
        answers=("90 m", "ninety metres"),
        gold_titles=("River Ott", "Sea of Bor"),
        metadata={"answerable": "false"},
    ),
    "hotpot": QAItem(
        qid="5a7e",
        question=HOTPOT["question"],
        answers=("yes",),
        gold_titles=("Ana Fell", "Bo Lind"),
        metadata={"type": "comparison", "level": "hard"},
    ),
    "2wiki": QAItem(
        qid="8e3f",
        question=HOTPOT["question"],
        answers=("yes",),
        gold_titles=("Ana Fell", "Bo Lind"),
        metadata={"type": "bridge_comparison", "entity_ids": "Q1_Q4", "answer_id": "Q5"},
    ),
}


def read(path: Path, content: str | bytes) -> tuple[list[QAItem], list[str]]:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    rejects = Rejects(set_aside=True)
    items = read_questions(path, rejects)
    return items, [str(item).removeprefix(f"{path.parent}/") for item in rejects.items]


@pytest.mark.parametrize("form", ["lines", "array", "indented array", "array, a row a line"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("row", "layout"),
    [(WEBSHAPER, "webshaper"), (MUSIQUE, "musique"), (HOTPOT, "hotpot"), (HOTPOT_COLUMNS, "hotpot"), (TWO_WIKI, "2wiki")],
)  # fmt: skip
def test_published_layouts_are_read_as_lines_and_as_an_array(
    tmp_path: Path, row: dict[str, Any], layout: str, suffix: str, form: str
) -> None:
    rows = [row, {"id": "other", "question": "Näher?"}]
    content = {
        "lines": "".join(json.dumps(each) + "\n" for each in rows),
        "array": json.dumps(rows),
        "indented array": "\ufeff \n" + json.dumps(rows, indent=2, ensure_ascii=False) + "\n\n",
        "array, a row a line": "[" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in rows) + "\n]",
    }[form]
    items, refused = read(tmp_path / f"qa.json{suffix}", content)
    assert items == [READ[layout], QAItem(qid="other", question="Näher?", answers=())]
    assert refused == []


@pytest.mark.parametrize(
    ("fields", "titles", "urls"),
    [
        ({"gold_titles": ["A", "A", "B"], "gold_urls": "https://a.example"}, ("A", "B"), ("https://a.example",)),
        ({"gold_titles": "A", "supporting_facts": [["B", 0]], "gold_urls": [], "urls": ["u"]}, ("A",), ()),
        ({"supporting_facts": [], "urls": None}, (), ()),
        ({"paragraphs": ["of another", {"text": "layout"}], "context": [1], "docs": {"a": 1}}, (), ()),
        ({"paragraphs": [{"idx": 0, "title": "no mark, as in a test set", "paragraph_text": "t"}]}, (), ()),
    ],
)
def test_gold_is_named_by_title_or_url_where_a_row_says_so(
    tmp_path: Path, fields: dict[str, Any], titles: tuple[str, ...], urls: tuple[str, ...]
) -> None:
    items, refused = read(tmp_path / "qa.jsonl", json.dumps({"qid": "a", "question": "q?", **fields}))
    assert items == [QAItem(qid="a", question="q?", answers=(), gold_titles=titles, gold_urls=urls)]
    assert refused == []


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"urls": {"a": 1}}, "urls: expected a text or a list of texts, found {'a': 1}"),
        ({"urls": ["u", 5]}, "urls: expected a text or a list of texts, found 5"),
        ({"gold_titles": [None]}, "gold_titles: expected a text or a list of texts, found None"),
        ({"gold_titles": " "}, "gold_titles: expected a title, found ' '"),
        (
            {"supporting_facts": "A"},
            "supporting_facts: expected a list of [title, number of a sentence], or an object with lists title and "
            "sent_id, found 'A'",
        ),
        (
            {"supporting_facts": ["A", 0]},
            "supporting_facts: expected pairs [title, number of a sentence], found 'A'",
        ),
        (
            {"supporting_facts": [["A", 0], [1, "B"]]},
            "supporting_facts: expected pairs [title, number of a sentence], found [1, 'B']",
        ),
        ({"supporting_facts": {"title": "A"}}, "supporting_facts.title: expected a list of titles, found 'A'"),
        (
            {"supporting_facts": {"title": [1], "sent_id": [0]}},
            "supporting_facts.title: expected a text or a list of texts, found 1",
        ),
        (
            {"paragraphs": [{"title": "A", "is_supporting": "yes"}]},
            "paragraphs.is_supporting: expected true or false, found 'yes'",
        ),
        (
            {"paragraphs": [{"is_supporting": True}]},
            "paragraphs.title: expected a text or a list of texts, found None",
        ),
        (
            {"answer": "x", "answer_aliases": [["y"]]},
            "answer_aliases: expected a text, a number or a list of them, found ['y']",
        ),
    ],
)
def test_gold_of_another_shape_is_refused_with_file_place_field_and_value(
    tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    row = {"qid": "a", "question": "q?", **fields}
    assert read(tmp_path / "qa.jsonl", json.dumps(row)) == ([], [f"qa.jsonl:1: {fault}"])
    items, refused = read(tmp_path / "qa.json", json.dumps([{"qid": "b", "question": "b?"}, row]))
    assert [item.qid for item in items] == ["b"]
    assert refused == [f"qa.json:2: item 2: {fault}"]


def test_bad_items_of_an_array_hide_no_question(tmp_path: Path) -> None:
    good = [json.dumps({"qid": qid, "question": "q?"}).encode() for qid in ("a", "b", "a", "c")]
    content = b'[%b, [], "x", {"qid": "\xff"},\n%b, %b, {"qid": NaN}, %b]' % tuple(good)
    items, refused = read(tmp_path / "qa.json", content)
    assert [item.qid for item in items] == ["a", "b", "c"]
    assert refused == [
        "qa.json:2: item 2: expected a JSON object, found []",
        "qa.json:3: item 3: expected a JSON object, found 'x'",
        "qa.json:4: item 4: expected UTF-8 text, found <byte 0xff at column 10>",
        "qa.json:6: item 6: qid: expected an id of its own (item 1 has it already), found 'a'",
        """qa.json:7: item 7: expected a JSON object (NaN is not JSON), found '{"qid": NaN}'""",
    ]


def test_an_array_in_the_first_of_many_lines_is_a_bad_line(tmp_path: Path) -> None:
    items, refused = read(tmp_path / "qa.jsonl", '["x"]\n{"qid": "a", "question": "q?"}\n')
    assert [item.qid for item in items] == ["a"]
    assert refused == ["qa.jsonl:1: expected a JSON object, found ['x']"]


@pytest.mark.parametrize("content", ["", "[]", " [ ]\n", "\n\n"])
def test_a_file_without_questions_has_none(tmp_path: Path, content: str) -> None:
    assert read(tmp_path / "qa.json", content) == ([], [])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('[{"qid": 1}, {"qid"', "item 2: Expecting ':' delimiter, found the end of the file"),
        ('[{"qid": 1}', "item 1: expected a comma or ] after it, found the end of the file"),
        ('[{"qid": 1} {"qid": 2}]', "item 1: expected a comma or ] after it, found '{\"qid\": 2}]'"),
        ('[{"qid": 1},]', "item 2: Expecting value, found ']'"),
        ("[", "item 1: Expecting value, found the end of the file"),
        ('[\n{"qid": 1}\n]\n{"qid": 2}', "expected the end of the file after it, found '{\"qid\": 2}'"),
        ("[" * 100_000, f"item 1: nested too deeply, found {'[' * 40!r}"),
    ],
)
def test_a_broken_array_is_an_error_since_what_follows_cannot_be_told_apart(
    tmp_path: Path, content: str, fault: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "qa.json", content)
    assert str(caught.value) == f"{tmp_path / 'qa.json'}: broken JSON array: {fault}"
