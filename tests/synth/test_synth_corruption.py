"""The sample's recorded oracle answers, some of them spoilt: every count must be what was spoilt, and no label may change."""

import gzip
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentir import sample
from agentir.cli import run

SHARE = 0.05
KINDS = ("cut", "refusal", "empty", "null", "repeated", "out_of_range", "missing", "prose", "thought", "lost")
FAILED = ("refusal", "empty", "null")
HARMLESS = ("prose", "thought")


def spoil(kind: str, response: str, rng: random.Random) -> str | None:
    """The response with a fault of one kind; the recorded ones are whole chains."""
    numbers = re.findall(r"\d+", response)
    chain = [f"[{number}]" for number in numbers]
    if kind == "cut":
        return " > ".join(chain[: len(chain) // 2]) + " > ["
    if kind == "repeated":
        return " > ".join([*chain[:3], chain[0], *chain[3:], chain[1]])
    if kind == "out_of_range":
        return " > ".join([chain[0], "[0]", *chain[1:], f"[{len(chain) + 1}]", "[999]"])
    if kind == "missing":
        left_out = set(rng.sample(chain[1:], 3))
        return " > ".join(number for number in chain if number not in left_out)
    if kind == "prose":
        return f"Passage {numbers[-1]} is of 1998 and [{numbers[-2]}] names 3 cities. **Ranking:** {response}. Top 2 are sure."
    if kind == "thought":
        return f"<think>Perhaps {' > '.join(reversed(chain))}, or not.</think>\n\n{response}"
    return {"refusal": "I cannot tell which of the 20 passages help.", "empty": "", "null": None}[kind]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["report"]
    return found


def label_and_build(folder: Path, answers: Path) -> tuple[dict[str, dict[str, Any]], Path, Path]:
    """The examples by sub-query, with the folders of rankings and examples."""
    questions = str(sample.path("questions"))
    rankings, examples = folder / f"rankings_{answers.stem}", folder / f"examples_{answers.stem}"
    run(
        [
            "synth",
            "label",
            "--subqueries",
            str(folder / "subqueries"),
            "--answers",
            str(answers),
            "--out",
            str(rankings),
        ]
    )
    arguments = ["--rankings", str(rankings), "--questions", questions, "--corpus", str(sample.path("corpus"))]
    run(["synth", "build", *arguments, "--out", str(examples)])
    made = [row for split in ("train", "dev", "heldout") for row in read(examples / f"{split}.jsonl")]
    return {f"{row['subquery']['qid']} {row['subquery']['turn']}": row for row in made}, rankings, examples


@pytest.mark.parametrize("seed", [0, 1])
def test_counts_are_exactly_what_was_spoilt_and_no_other_label_changes(tmp_path: Path, seed: int) -> None:
    trajectories, questions = (str(sample.path(name)) for name in ("trajectories", "questions"))
    run(
        [
            "synth",
            "extract",
            "--trajectories",
            trajectories,
            "--questions",
            questions,
            "--out",
            str(tmp_path / "subqueries"),
        ]
    )
    with gzip.open(sample.path("oracle_answers"), "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    rng = random.Random(seed)
    long = [n for n, row in enumerate(rows) if len(row["candidates"]) >= 15]
    spoilt = {n: KINDS[place % len(KINDS)] for place, n in enumerate(rng.sample(long, round(SHARE * len(rows))))}
    kinds = Counter(spoilt.values())
    assert set(kinds) == set(KINDS)
    bad = [
        {**row, "response": spoil(spoilt[n], row["response"], rng) if n in spoilt else row["response"]}
        for n, row in enumerate(rows)
        if spoilt.get(n) != "lost"
    ]
    for name, content in (("clean", rows), ("spoilt", bad)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    clean, _, _ = label_and_build(tmp_path, tmp_path / "clean.jsonl")
    made, rankings, examples = label_and_build(tmp_path, tmp_path / "spoilt.jsonl")

    num_failed = sum(kinds[kind] for kind in FAILED)
    num_cut_off = sum(
        len(rows[n]["candidates"]) - len(rows[n]["candidates"]) // 2 for n in spoilt if spoilt[n] == "cut"
    )
    expected = {
        "subqueries": len(rows),
        "answers": len(bad),
        "rankings": len(bad) - num_failed,
        "rerank_failed": num_failed,
        "repaired": kinds["cut"] + kinds["repeated"] + kinds["out_of_range"] + kinds["missing"],
        "repeated_numbers": 2 * kinds["repeated"],
        "invalid_numbers": 3 * kinds["out_of_range"],
        "missing_numbers": 3 * kinds["missing"] + num_cut_off,
        "subqueries_without_answer": kinds["lost"],
    }
    assert expected.items() <= report(rankings).items()
    lost = {f"{rows[n]['qid']}_turn{rows[n]['turn']}" for n in spoilt if spoilt[n] == "lost"}
    assert set(report(rankings)["without_answer"]) == lost
    built = report(examples)
    assert (built["rankings"], built["rerank_failed"]) == (len(bad), num_failed)
    assert built["partly_ranked_lists"] == kinds["cut"] + kinds["missing"]
    assert len(clean) == len(rows)
    assert len(made) == len(bad) - num_failed

    with gzip.open(questions, "rt", encoding="utf-8") as file:
        items = {row["qid"]: row for row in map(json.loads, file)}
    heldout_gold = {docid for row in items.values() if row["split"] == "heldout" for docid in row["gold_docids"]}
    shown = {f"{row['qid']} {row['turn']}": len(row["candidates"]) for row in rows}
    for key, row in made.items():
        assert row["gold_docids"] == items[row["subquery"]["qid"]]["gold_docids"]
        own = {*row["gold_docids"], *row["positive_docids"]}
        assert (own | heldout_gold).isdisjoint(row["negative_docids"])
        assert 0 <= len(row["negative_docids"]) <= 7
        if len(row["oracle_order"]) < shown[key]:
            assert all(row["oracle_order"].index(docid) >= shown[key] / 2 for docid in row["negative_docids"])

    for n, row in enumerate(rows):
        key, kind = f"{row['qid']} {row['turn']}", spoilt.get(n)
        if kind in FAILED or kind == "lost":
            assert key not in made
        elif kind in ("cut", "missing"):
            ranked = made[key]["oracle_order"]
            assert [docid for docid in clean[key]["oracle_order"] if docid in ranked] == ranked
            assert set(made[key]["negative_docids"]) < set(ranked)
            assert kind == "missing" or not made[key]["negative_docids"], "what was cut off were the worse ones"
        else:
            assert made[key] == clean[key]
