import json
from pathlib import Path
from typing import Any

import pytest

from agentir.drsynth.labels import Labels, read_labels
from agentir.jsonl import Rejects
from agentir.records import Candidate, SubQuery

CASES = Path(__file__).parent / "data" / "cases"


def subquery(qid: str, turn: int = 0, call: int = 0) -> SubQuery:
    return SubQuery(qid=qid, turn=turn, call=call, question="Who?", reasoning="r", query="s")


def row(**fields: Any) -> dict[str, Any]:
    return {"qid": "q", "turn": 0, "candidates": ["a", "b", "c"], "response": "[2] > [1] > [3]", **fields}


def read(tmp_path: Path, *rows: dict[str, Any], gold: Any = None) -> tuple[Labels, list[str]]:
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    rejects = Rejects()
    labels = read_labels([path], [subquery("q"), subquery("q", 1), subquery("q", 1, 1), subquery("7")], rejects, gold)
    return labels, [str(item).replace(f"{tmp_path}/", "") for item in rejects.items]


def test_answers_become_rankings_in_the_order_of_the_sub_queries(tmp_path: Path) -> None:
    labels, refused = read(
        tmp_path,
        row(qid=7, query="s", question="Who?", model="m"),
        row(turn=1, call=1, response="[3] > [3] > [9]", num_gold_first=1),
        row(response=None),
        gold={"q": ("c",)},
    )
    assert not refused
    assert labels.unanswered == ("q_turn1",)
    failed, mended, whole = labels.rankings
    assert (failed.subquery, failed.order, failed.ranked_count) == (subquery("q"), ("a", "b", "c"), 0)
    assert not failed.votes[0].parsed
    assert (mended.subquery.subqid, mended.order, mended.ranked_count) == ("q_turn1.1", ("c", "a", "b"), 1)
    assert (whole.subquery.qid, whole.order, whole.ranked_count) == ("7", ("b", "a", "c"), 3)
    assert mended.num_gold_first == 1
    assert mended.candidates == (
        Candidate(docid="a", source="gold"),
        Candidate(docid="b", source="retrieved"),
        Candidate(docid="c", source="gold"),
    )
    assert labels.counts == {
        "answers": 3,
        "rankings": 2,
        "rerank_failed": 1,
        "repaired": 1,
        "repeated_numbers": 1,
        "invalid_numbers": 1,
        "missing_numbers": 2,
    }


def test_ids_are_strings_so_that_13_is_not_013(tmp_path: Path) -> None:
    """Case T17."""
    ids = json.loads((CASES / "T17" / "train.jsonl").read_text(encoding="utf-8"))
    labels, refused = read(tmp_path, row(candidates=[*ids["positive_ids"], *ids["negative_ids"]]))
    assert not refused
    assert labels.rankings[0].order == ("13", "12", "013")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"qid": "x"}, "qid, turn, call: expected a sub-query of the artifact, found 'x, 0, 0'"),
        ({"turn": 5}, "qid, turn, call: expected a sub-query of the artifact, found 'q, 5, 0'"),
        ({"call": 1}, "qid, turn, call: expected a sub-query of the artifact, found 'q, 0, 1'"),
        ({"qid": None}, "qid: expected an id (a text or an integer), found None"),
        ({"turn": "0"}, "turn: expected an integer from 0, found '0'"),
        ({"query": "other"}, "query: expected that of the sub-query, 's', found 'other'"),
        ({"question": "other"}, "question: expected that of the sub-query, 'Who?', found 'other'"),
        ({"response": ["[1]"]}, "response: expected a text or null, found ['[1]']"),
        ({"candidates": "abc"}, "candidates: expected a list of ids (texts or integers), found 'abc'"),
        ({"candidates": []}, "candidates: expected a list of ids (texts or integers), found []"),
        ({"candidates": ["a", None]}, "candidates: expected a list of ids (texts or integers), found ['a', None]"),
        ({"candidates": [1, "2", "1"]}, "candidates: expected each id once, found '1'"),
        ({"num_gold_first": 4}, "num_gold_first: expected at most the 3 candidates, found 4"),
        ({"num_gold_first": -1}, "num_gold_first: expected an integer from 0, found -1"),
    ],
)
def test_an_answer_that_fits_no_sub_query_is_refused_with_its_line(
    tmp_path: Path, changed: dict[str, Any], fault: str
) -> None:
    labels, refused = read(tmp_path, row(turn=1), row(**changed))
    assert len(labels.rankings) == 1
    assert refused == [f"answers.jsonl:2: {fault}"]


def test_a_request_without_a_response_is_refused(tmp_path: Path) -> None:
    unanswered = row()
    del unanswered["response"]
    assert read(tmp_path, unanswered)[1] == [
        "answers.jsonl:1: response: expected a text or null, found <no such field>"
    ]


def test_a_second_answer_is_refused_naming_the_first(tmp_path: Path) -> None:
    labels, refused = read(tmp_path, row(), row(response="[1]"))
    assert labels.counts["answers"] == 1
    assert refused[0].startswith("answers.jsonl:2: qid, turn, call: expected one answer a sub-query (first: ")
    assert "answers.jsonl:1)" in refused[0]
