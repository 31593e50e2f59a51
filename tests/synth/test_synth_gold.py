"""From questions as HotpotQA publishes them, gold named by title, to candidate lists and examples."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentir.cli import run
from agentir.search.builder import build_index

CORPUS = [
    {"docid": "d1", "title": "Ana Fell", "text": "She painted boats in the harbour of Bergen."},
    {"docid": "d2", "title": "Bo Lind", "text": "He taught music to children."},
    {"docid": "d3", "title": "Harbour", "text": "A harbour shelters boats."},
    {"docid": "d4", "title": "Boat", "text": "Boats float in a harbour."},
]
QUESTIONS = [
    {
        "_id": "q1",
        "question": "What did the teacher of music and the painter share?",
        "answer": "a house",
        "supporting_facts": [["Ana Fell", 0], ["bo lind", 0]],
        "context": [["Ana Fell", ["She painted."]]],
        "type": "bridge",
        "level": "easy",
    },
    {
        "_id": "q2",
        "question": "Where?",
        "answer": "there",
        "supporting_facts": [["Nowhere", 0]],
        "context": [],
        "type": "bridge",
        "level": "easy",
    },
]
BY_NAME = {
    "questions_with_gold_found_by_name": 1,
    "questions_with_no_gold_found_by_name": 1,
    "gold_titles_not_in_corpus": 1,
    "gold_urls_not_in_corpus": 0,
    "gold_names_of_several_documents": 0,
}


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["report"]
    return found


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_gold_named_by_title_is_among_the_candidates_and_never_a_negative(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function = {"name": "search", "arguments": json.dumps({"query": "boats harbour"})}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    messages = [{"role": "user", "content": "?"}, call, {"role": "tool", "tool_call_id": "1", "content": "[]"}]
    episodes = [{"qid": qid, "messages": messages, "status": "completed"} for qid in ("q1", "q2")]
    for name, lines in (("corpus.jsonl", CORPUS), ("episodes.jsonl", episodes)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS), encoding="utf-8")
    build_index(tmp_path / "index", tmp_path / "corpus.jsonl")

    def synth(program: str, **paths: str) -> None:
        given = [part for name, value in paths.items() for part in (f"--{name}", str(tmp_path / value))]
        run(["synth", program, "--questions", str(tmp_path / "questions.json"), *given])

    synth("extract", trajectories="episodes.jsonl", out="subqueries")
    assert report(tmp_path / "subqueries")["questions_without_gold"] == 0
    synth("label", subqueries="subqueries", index="index", out="requests")
    requests = rows(tmp_path / "requests/requests.jsonl")
    assert [sorted(row["candidates"]) for row in requests] == [["d1", "d2", "d3", "d4"], ["d1", "d3", "d4"]]
    assert BY_NAME.items() <= report(tmp_path / "requests").items()
    assert "questions with no gold found by name: 1" in capsys.readouterr().out

    for row in requests:
        order = [row["candidates"].index(docid) + 1 for docid in ("d3", "d4", "d2", "d1") if docid in row["candidates"]]
        row["response"] = " > ".join(f"[{number}]" for number in order)
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in requests), encoding="utf-8")
    synth("label", subqueries="subqueries", answers="answers.jsonl", out="rankings")
    for corpus in ("corpus.jsonl", "index"):
        out = f"examples from {corpus}"
        synth("build", rankings="rankings", corpus=corpus, out=out)
        examples = {row["subquery"]["qid"]: row for row in rows(tmp_path / out / "train.jsonl")}
        assert examples["q1"]["gold_docids"] == ["d1", "d2"]
        assert examples["q1"]["negative_docids"] == ["d4"]
        assert examples["q2"]["negative_docids"] == ["d4", "d1"]
        assert report(tmp_path / out)["gold_by_name"] == BY_NAME
        assert report(tmp_path / out)["questions_without_gold"] == 1
        assert "gold titles not in corpus: 1" in capsys.readouterr().out
