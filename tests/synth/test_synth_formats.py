"""What `synth build` writes beside the examples by id: training rows, a folder for `datasets`, and the data card."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentir.artifacts import verify_files
from agentir.cli import run
from agentir.embed.template import QueryTemplate
from agentir.errors import ConfigError, MissingExtraError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.train.data import read_rows

CORPUS = [{"docid": f"d{n}", "text": f"Text {n} | pipe\nline.", "title": "Title" if n == 0 else ""} for n in range(9)]
QUESTIONS = [
    {"qid": "t", "question": "Who?", "answer": "x", "gold_docids": ["d0"]},
    {"qid": "v", "question": "What?", "answer": "x", "gold_docids": ["d1"], "split": "dev"},
    {"qid": "h", "question": "Where?", "answer": "x", "gold_docids": ["d2"], "split": "heldout"},
]
RANKINGS = [
    ("t", 0, "Because.", ["d0", "d3", "d4", "d5", "d6"]),
    ("t", 1, "", ["d7", "d3", "d4"]),
    ("t", 2, "", ["d7"]),
    ("v", 0, "", ["d1", "d3", "d4", "d5"]),
    ("h", 0, "", ["d2"]),
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def build(tmp_path: Path) -> list[str]:
    """The arguments that build examples of a handful of rankings."""
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "questions.jsonl", QUESTIONS)
    episodes, answers = [], []
    for qid in ("t", "v", "h"):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        for _, turn, reasoning, order in (row for row in RANKINGS if row[0] == qid):
            function = {"name": "search", "arguments": json.dumps({"query": f"query {turn}"})}
            call = {"id": str(turn), "function": function}
            messages += [
                {"role": "assistant", "reasoning_content": reasoning, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": str(turn), "content": "[]"},
            ]
            response = " > ".join(f"[{n + 1}]" for n in range(len(order)))
            answers.append({"qid": qid, "turn": turn, "candidates": order, "response": response})
        episodes.append({"qid": qid, "messages": messages, "status": "completed"})
    write(tmp_path / "runs.jsonl", episodes)
    write(tmp_path / "answers.jsonl", answers)
    questions = ["--questions", str(tmp_path / "questions.jsonl")]
    subqueries, rankings = str(tmp_path / "subqueries"), str(tmp_path / "rankings")
    run(["synth", "extract", "--trajectories", str(tmp_path / "runs.jsonl"), *questions, "--out", subqueries])
    answered = ["--answers", str(tmp_path / "answers.jsonl")]
    run(["synth", "label", "--subqueries", subqueries, *answered, *questions, "--out", rankings])
    arguments = ["synth", "build", "--rankings", rankings, *questions, "--corpus", str(tmp_path / "corpus.jsonl")]
    return [*arguments, "--out", str(tmp_path / "examples")]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["report"]
    return found


def test_only_tevatron_rows_and_the_card_are_written_unless_more_is_asked_for(build: list[str], tmp_path: Path) -> None:
    run(build)
    out = tmp_path / "examples"
    files = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert sorted(files) == ["CARD.md", "dev.jsonl", "heldout.jsonl", "tevatron.jsonl", "train.jsonl"]
    with pytest.raises(ConfigError, match="formats"):
        run([*build[:-1], str(tmp_path / "other"), "--formats", "csv"])


def test_columns_hold_rendered_texts_of_training_questions_and_are_read_back(build: list[str], tmp_path: Path) -> None:
    run([*build, "--formats", "sentence-transformers", "--num-negatives", "2", "--num-positives", "2"])
    out = tmp_path / "examples"
    assert not (out / "tevatron.jsonl").exists()
    text = {row["docid"]: row["text"] for row in CORPUS}
    negatives = {"negative_1": text["d5"], "negative_2": text["d6"]}
    anchor = "Reasoning: Because.\n\nQuery: query 0"
    assert lines(out / "sentence-transformers.jsonl") == [
        {"anchor": anchor, "positive": f"Title {text['d0']}", **negatives},
        {"anchor": anchor, "positive": text["d3"], **negatives},
    ]
    found = report(out)
    assert found["sentence_transformers_rows"] == 2
    assert found["sentence_transformers_examples_with_too_few_negatives"] == 2
    assert found["sentence_transformers_template"] == QueryTemplate().hash
    assert "tevatron_rows" not in found
    rejects, documents = Rejects(), dict[str, Document]()
    rows = read_rows(out / "sentence-transformers.jsonl", rejects, documents)
    assert [(row.query.reasoning, row.query.query) for row in rows] == [("Because.", "query 0")] * 2
    assert [[documents[docid].text for docid in row.negatives] for row in rows] == [list(negatives.values())] * 2


def test_datasets_loads_the_folder_with_all_sides(build: list[str], tmp_path: Path) -> None:
    import datasets

    run([*build, "--formats", "datasets", "tevatron"])
    out = tmp_path / "examples"
    loaded = datasets.load_dataset(str(out / "datasets"), cache_dir=str(tmp_path / "cache"))
    rows = {split: loaded[split].to_list() for split in ("train", "dev", "heldout")}
    for split, found in rows.items():
        assert [row["query_id"] for row in found] == [
            f"{row['subquery']['qid']}_turn{row['subquery']['turn']}" for row in lines(out / f"{split}.jsonl")
        ]
    columns = ("query_id", "query", "positive_passages", "negative_passages")
    with_negatives = [row for row in rows["train"] if row["negative_passages"]]
    assert [{name: row[name] for name in columns} for row in with_negatives] == lines(out / "tevatron.jsonl")
    first, *_, last = rows["train"]
    assert (first["reasoning"], first["sub_query"], first["question"]) == ("Because.", "query 0", "Who?")
    assert (last["reasoning"], last["negative_passages"]) == ("", [])
    assert verify_files(out) == []
    assert {"datasets/README.md", "datasets/dev.parquet"} <= set(
        json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    )
    assert (out / "datasets/README.md").read_text(encoding="utf-8").endswith((out / "CARD.md").read_text("utf-8"))


def test_a_side_without_examples_is_no_split_since_datasets_reads_no_empty_ones(
    build: list[str], tmp_path: Path
) -> None:
    import datasets

    write(tmp_path / "questions.jsonl", [{**row, "split": "train"} for row in QUESTIONS])
    run([*build, "--formats", "datasets"])
    loaded = datasets.load_dataset(str(tmp_path / "examples" / "datasets"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 5}


def test_held_out_and_development_questions_are_in_no_training_rows(build: list[str], tmp_path: Path) -> None:
    run([*build, "--formats", "tevatron", "sentence-transformers", "--num-negatives", "1"])
    out = tmp_path / "examples"
    assert {row["query_id"].partition("_")[0] for row in lines(out / "tevatron.jsonl")} == {"t"}
    rows = lines(out / "sentence-transformers.jsonl")
    assert {row["positive"] for row in rows} == {CORPUS[7]["text"], f"Title {CORPUS[0]['text']}"}


def test_the_card_tells_options_inputs_and_counts_and_does_not_depend_on_places(
    build: list[str], tmp_path: Path
) -> None:
    run([*build, "--max-per-question", "2", "--min-rank-gap", "2"])
    card = (tmp_path / "examples/CARD.md").read_text(encoding="utf-8")
    manifest = json.loads((tmp_path / "examples/manifest.json").read_text(encoding="utf-8"))
    for name, value in manifest["config"].items():
        assert f"| {name} | `{json.dumps(value)}` |\n" in card
    for name, entry in manifest["inputs"].items():
        assert f"| {name} | {Path(entry['path']).name} | `{entry['fingerprint']}` |\n" in card
    made_with = json.loads((tmp_path / "rankings/manifest.json").read_text(encoding="utf-8"))
    assert f"`{made_with['inputs']['subqueries']['fingerprint']}`" in card
    assert "| over_max_per_question | 1 |\n" in card
    assert "| passed_over_as_negatives | rank_gap: " in card
    for name in ("examples", "questions", "leaks", "without_agreement"):
        assert (
            f"| {name} | {' | '.join(str(manifest['report'][s][name]) for s in ('train', 'dev', 'heldout'))} |" in card
        )
    assert "Licence: as the sources'" in card
    assert str(tmp_path) not in card
    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "rankings", moved / "rankings")
    again = [str(moved / "rankings") if one == str(tmp_path / "rankings") else one for one in build[:-1]]
    run([*again, str(moved / "out"), "--max-per-question", "2", "--min-rank-gap", "2"])
    assert (moved / "out/CARD.md").read_text(encoding="utf-8") == card


def test_a_missing_package_is_named_before_any_work(build: list[str], tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pyarrow'] = None; from agentir.cli import main; main()"
    arguments = [sys.executable, "-c", hidden, *build[0:], "--formats", "datasets"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, f"error: {MissingExtraError('pyarrow', 'train')}\n")
    assert not (tmp_path / "examples").exists()
