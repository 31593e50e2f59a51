import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentir import sample
from agentir.corpus.qa import read_questions
from agentir.errors import InputError
from agentir.jsonl import Rejects
from agentir.records import QAItem

CASES = Path(__file__).parents[1] / "data" / "cases"


def read(tmp_path: Path, *rows: Any, set_aside: bool = True) -> tuple[list[QAItem], list[str]]:
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rejects = Rejects(set_aside=set_aside)
    items = read_questions(path, rejects)
    return items, [str(item).removeprefix(f"{tmp_path}/") for item in rejects.items]


def test_questions_of_mixed_shape_are_read_and_a_blank_one_is_refused_with_its_line() -> None:
    """Case S18."""
    path = CASES / "S18" / "qa.jsonl"
    rejects = Rejects()
    items = read_questions(path, rejects)
    assert [(item.qid, item.answers, item.gold_docids) for item in items] == [
        ("7", ("Otto",), ("d1",)),
        ("007", ("Otto", "Otto K."), ()),
        ("x/3", ("1974",), ()),
    ]
    assert [(item.line, item.field) for item in rejects.items] == [(4, "question")]
    with pytest.raises(InputError, match=r"qa\.jsonl:4: question: expected a question, found '   '"):
        rejects.check()


@pytest.mark.parametrize("key", ["gold_docids", "gold_docs", "positives"])
def test_a_bare_string_is_a_list_of_one_never_split_into_characters(tmp_path: Path, key: str) -> None:
    """Case S13."""
    text = (CASES / "S13" / "pairs.jsonl").read_text(encoding="utf-8").replace('"pos"', f'"{key}"')
    rows = [{"id": number, **json.loads(line)} for number, line in enumerate(text.splitlines())]
    items, refused = read(tmp_path, *rows)
    assert not refused
    assert [item.gold_docids for item in items] == [("Basalt is a volcanic rock.",), ("Granite is plutonic.",)]


def test_a_byte_order_mark_carriage_returns_and_a_bad_line_hide_no_question(tmp_path: Path) -> None:
    """Case T13; its rows are queries without an id, so each gets its query as one."""
    path = tmp_path / "train.jsonl"
    raw = (CASES / "T13" / "train.jsonl").read_bytes()
    path.write_bytes(re.sub(rb'"query": ("q\d"), "positive"', rb'"id": \1, "query": \1, "positives"', raw))
    rejects = Rejects()
    items = read_questions(path, rejects)
    assert items == [
        QAItem(qid=f"q{n}", question=f"q{n}", answers=(), gold_docids=(f"p{n}",), metadata={}) for n in (1, 2, 4)
    ]
    assert [item.line for item in rejects.items] == [4]
    with pytest.raises(InputError, match=r"train\.jsonl:4: expected a JSON object"):
        rejects.check()


@pytest.mark.parametrize(
    ("row", "item"),
    [
        ({"_id": "a", "query": "q?"}, QAItem(qid="a", question="q?", answers=())),
        ({"query_id": 3, "query": "q?", "answer": None}, QAItem(qid="3", question="q?", answers=())),
        ({"qid": "a", "question": "q?", "answer": ""}, QAItem(qid="a", question="q?", answers=())),
        (
            {"qid": "a", "question": "q?", "answers": ["x", 1.5, "x"]},
            QAItem(qid="a", question="q?", answers=("x", "1.5")),
        ),
        (
            {"qid": "a", "question": "q?", "positives": [{"docid": 5, "text": "t"}, "05", 5]},
            QAItem(qid="a", question="q?", answers=(), gold_docids=("5", "05")),
        ),
        (
            {"qid": "a", "question": "q?", "split": "heldout", "num_hops": 2, "dataset": "d", "ok": True, "hops": [1]},
            QAItem(
                qid="a",
                question="q?",
                answers=(),
                split="heldout",
                metadata={"num_hops": "2", "dataset": "d", "ok": "true"},
            ),
        ),
    ],
)
def test_every_published_shape_is_read(tmp_path: Path, row: dict[str, Any], item: QAItem) -> None:
    assert read(tmp_path, row) == ([item], [])


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"question": "q?"}, "qa.jsonl:1: qid: expected an id (a text or an integer), found None"),
        ({"id": True, "question": "q?"}, "qa.jsonl:1: id: expected an id (a text or an integer), found True"),
        ({"id": 1.0, "question": "q?"}, "qa.jsonl:1: id: expected an id (a text or an integer), found 1.0"),
        ({"id": "a", "query": " "}, "qa.jsonl:1: query: expected a question, found ' '"),
        (
            {"id": "a", "query": "q?", "answer": {"value": "x"}},
            "qa.jsonl:1: answer: expected a text, a number or a list of them, found {'value': 'x'}",
        ),
        (
            {"id": "a", "query": "q?", "positives": [{"text": "t"}]},
            "qa.jsonl:1: positives: expected an id (a text or an integer), found None",
        ),
        ({"id": "a", "query": "q?", "split": 1}, "qa.jsonl:1: split: expected a text, found 1"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_field_and_value(tmp_path: Path, row: Any, fault: str) -> None:
    assert read(tmp_path, row) == ([], [fault])


def test_an_id_used_before_is_refused_naming_both_lines(tmp_path: Path) -> None:
    items, refused = read(tmp_path, {"id": 7, "query": "a?"}, {"id": "8", "query": "b?"}, {"qid": "7", "query": "c?"})
    assert [item.question for item in items] == ["a?", "b?"]
    assert refused == ["qa.jsonl:3: qid: expected an id of its own (line 1 has it already), found '7'"]


def test_without_a_place_for_rejects_all_faults_are_raised(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"id": 1, "query": "a?"}\n{"id": 2}\n{"id": 1, "query": "b?"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"(?s)qa\.jsonl:2: question: .*qa\.jsonl:3: qid: "):
        read_questions(path)
    path.write_text('{"id": 1, "query": "a?"}\n', encoding="utf-8")
    assert [item.qid for item in read_questions(path)] == ["1"]


def test_the_sample_is_as_described() -> None:
    rejects = Rejects()
    items = read_questions(sample.path("questions"), rejects)
    assert not rejects.items
    assert [sum(item.split == split for item in items) for split in ("train", "heldout")] == [558, 175]
    assert sum(item.metadata["dataset"] == "hard" for item in items) == 93
    lines = {}
    for name in ("corpus", "trajectories", "oracle_answers"):
        with gzip.open(sample.path(name), "rb") as file:
            lines[name] = sum(1 for _ in file)
    assert lines == {"corpus": 17526, "trajectories": 334, "oracle_answers": 1073}
    assert sum(path.stat().st_size for path in sample.path("corpus").parent.glob("*.gz")) < 6_000_000
