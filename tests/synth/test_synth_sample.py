"""The sample's way from trajectories to training examples, in numbers that change only with the rules that make them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agentir import sample
from agentir.cli import run

GOLDEN: dict[str, dict[str, Any]] = {
    "subqueries": {
        "trajectories": 334,
        "trajectories_without_searches": 0,
        "subqueries": 1073,
        "empty_reasonings": 0,
        "calls_with_bad_arguments": 0,
        "questions": 733,
    },
    "rankings": {
        "answers": 1073,
        "rankings": 1073,
        "rerank_failed": 0,
        "repaired": 0,
        "lists_with_gold_first": 305,
        "subqueries_without_answer": 0,
    },
    "examples": {
        "rankings": 1073,
        "rerank_failed": 0,
        "positive_is_heldout_gold": 0,
        "partly_ranked_lists": 0,
        "questions": {"train": 418, "dev": 140, "heldout": 175},
        "gold_docids_not_in_corpus": [],
        "tevatron_rows": 655,
    },
}
"""What each program counts."""
GOLDEN_EXAMPLES: dict[str, dict[str, Any]] = {
    "train": {
        "examples": 660,
        "questions": 207,
        "positives_that_are_gold": 646,
        "positives_from_lists_with_gold_first": 169,
        "negatives": 4572,
        "negatives_by_example": {"0": 5, "1": 1, "3": 1, "4": 1, "7": 652},
        "passed_over_as_negatives": {"dev_gold": 89, "heldout_gold": 85, "own_gold": 18},
        "with_fewer_negatives": 3,
        "without_negatives": 5,
        "leaks_in_query": 0.1182,
        "leaks_in_reasoning": 0.5091,
        "leaks": 0.5182,
    },
    "dev": {
        "examples": 219,
        "questions": 68,
        "positives_that_are_gold": 216,
        "positives_from_lists_with_gold_first": 61,
        "negatives": 1530,
        "negatives_by_example": {"4": 1, "7": 218},
        "passed_over_as_negatives": {"heldout_gold": 32, "dev_gold": 27, "own_gold": 3},
        "with_fewer_negatives": 1,
        "without_negatives": 0,
        "leaks_in_query": 0.1187,
        "leaks_in_reasoning": 0.5205,
        "leaks": 0.5434,
    },
    "heldout": {
        "examples": 194,
        "questions": 59,
        "positives_that_are_gold": 191,
        "positives_from_lists_with_gold_first": 75,
        "negatives": 1358,
        "negatives_by_example": {"7": 194},
        "passed_over_as_negatives": {"dev_gold": 17, "heldout_gold": 30},
        "with_fewer_negatives": 0,
        "without_negatives": 0,
        "leaks_in_query": 0.1134,
        "leaks_in_reasoning": 0.5309,
        "leaks": 0.5309,
    },
}
"""What the examples of each side are like, with a quarter of the training questions for dev, as in the demonstration."""


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["report"]
    return found


def test_the_sample_gives_these_numbers(tmp_path: Path) -> None:
    files = {name: str(sample.path(name)) for name in ("corpus", "questions", "trajectories", "oracle_answers")}
    subqueries, rankings, examples = (str(tmp_path / name) for name in ("subqueries", "rankings", "examples"))
    questions = ["--questions", files["questions"]]
    run(["synth", "extract", "--trajectories", files["trajectories"], *questions, "--out", subqueries])
    label = ["--subqueries", subqueries, "--answers", files["oracle_answers"], *questions]
    run(["synth", "label", *label, "--out", rankings])
    build = ["--rankings", rankings, *questions, "--corpus", files["corpus"], "--dev-fraction", "0.25"]
    run(["synth", "build", *build, "--out", examples])

    for program, golden in GOLDEN.items():
        found = report(tmp_path / program)
        assert {name: found[name] for name in golden} == golden
    for split, golden in GOLDEN_EXAMPLES.items():
        found = report(tmp_path / "examples")[split]
        assert {name: found[name] for name in golden} == golden
        lines = (tmp_path / "examples" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        by_example = Counter(str(len(row["negative_docids"])) for row in rows)
        assert by_example == golden["negatives_by_example"]
        assert {len(row["gold_docids"]) for row in rows} == {2, 3, 4}
