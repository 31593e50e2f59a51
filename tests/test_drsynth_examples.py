from typing import Any

import pytest

from agentir.drsynth.examples import NegativeFilter, make_example, make_examples
from agentir.drsynth.report import describe_examples, mentions
from agentir.records import Candidate, QAItem, Ranking, SubQuery, TrainingExample

QUESTIONS = {
    "q": QAItem(qid="q", question="?", answers=("New York",), gold_docids=("d0", "own")),
    "h": QAItem(qid="h", question="?", answers=(), gold_docids=("held",)),
    "v": QAItem(qid="v", question="?", answers=("no",), gold_docids=("dev",)),
}
SPLITS: Any = {"q": "train", "h": "heldout", "v": "dev"}
TEXTS = {
    "d0": "zero",
    "d0 copy": " zero ",
    "own": "o",
    "held": "h",
    "held copy": "h",
    "own copy": "o",
    "blank": "",
    "d1": "",
}
FILTER = NegativeFilter(QUESTIONS.values(), SPLITS, TEXTS)


def ranking(*order: str, ranked: int | None = None, qid: str = "q", gold_first: int = 0, **subquery: Any) -> Ranking:
    values = {"qid": qid, "turn": 0, "call": 0, "question": "?", "reasoning": "", "query": "s", **subquery}
    return Ranking(
        subquery=SubQuery(**values),
        candidates=tuple(Candidate(docid=docid, source="retrieved") for docid in sorted(order)),
        votes=(),
        order=order,
        ranked_count=len(order) if ranked is None else ranked,
        num_gold_first=gold_first,
    )


def example(*order: str, ranked: int | None = None, **sizes: int) -> tuple[TrainingExample, dict[str, int]]:
    made, passed_over = make_example(ranking(*order, ranked=ranked), FILTER, **sizes)
    assert made is not None
    return made, dict(passed_over)


def test_the_first_is_the_positive_and_the_last_seven_are_the_negatives() -> None:
    made, passed_over = example(*(f"d{n}" for n in range(20)))
    assert made.positive_docids == ("d0",)
    assert made.negative_docids == tuple(f"d{n}" for n in range(13, 20))
    assert made.oracle_order == tuple(f"d{n}" for n in range(20))
    assert passed_over == {}


def test_what_must_not_be_a_negative_is_passed_over_and_the_one_before_it_taken() -> None:
    end = ("own", "held", "dev", "d0 copy", "held copy", "own copy", "blank", "d9")
    made, passed_over = example("d0", "d1", "d2", "d3", *end, num_negatives=4)
    assert made.negative_docids == ("d2", "d3", "blank", "d9")
    assert passed_over == {
        "own_gold": 1, "heldout_gold": 1, "dev_gold": 1, "same_text_as_positive": 1, "same_text_as_gold": 2,
    }  # fmt: skip


def test_documents_above_the_negatives_taken_are_not_counted_as_passed_over() -> None:
    made, passed_over = example("d0", "own", "d1", "d2", num_negatives=2)
    assert (made.negative_docids, passed_over) == (("d1", "d2"), {})


def test_only_what_the_oracle_ranked_gives_labels() -> None:
    made, _ = example(*(f"d{n}" for n in range(20)), ranked=4)
    assert made.negative_docids == ("d1", "d2", "d3")
    assert made.oracle_order == ("d0", "d1", "d2", "d3")


def test_several_positives_are_taken_from_the_front_and_are_never_negatives() -> None:
    made, _ = example("d0", "d1", "d2", num_positives=2)
    assert (made.positive_docids, made.negative_docids) == (("d0", "d1"), ("d2",))
    made, _ = example("d0", num_positives=2)
    assert (made.positive_docids, made.negative_docids) == (("d0",), ())


def test_a_failed_ranking_gives_no_example() -> None:
    assert make_example(ranking("d0", "d1", ranked=0), FILTER) == (None, {})


def test_examples_are_sorted_by_side_and_everything_left_out_is_counted() -> None:
    made = make_examples(
        [
            ranking("d0", "d1"),
            ranking("held", "d1", "dev", ranked=2),
            ranking("d0", "d1", ranked=0),
            ranking("d0", qid="unknown"),
            ranking("held", "dev", "d1", qid="h"),
            ranking("d1", "d2", qid="v"),
        ],
        FILTER,
        SPLITS,
    )
    assert {split: len(examples) for split, examples in made.examples.items()} == {"train": 2, "dev": 1, "heldout": 1}
    assert made.counts == {
        "rerank_failed": 1,
        "rankings_of_unknown_questions": 1,
        "partly_ranked_lists": 1,
        "heldout_gold_as_positive": 1,
    }
    assert made.passed_over["heldout"] == {"dev_gold": 1}


@pytest.mark.parametrize(
    ("text", "answers", "found"),
    [
        ("She died in new york.", ["New York"], True),
        ("New  York, 1978", ["york"], True),
        ("Newyork", ["New York"], False),
        ("I know nothing", ["no"], False),
        ("was it 1978-11-15?", ["15", "x"], True),
        ("anything", ["", "..."], False),
        ("anything", [], False),
    ],
)
def test_an_answer_is_mentioned_in_whole_words(text: str, answers: list[str], found: bool) -> None:
    assert mentions(text, answers) == found


def test_a_set_of_examples_is_described_in_numbers() -> None:
    rankings = [
        ranking("d0", "d1", "d2", reasoning="one two three", gold_first=2),
        ranking("d1", "d2", reasoning="New York it is", query="Who?", turn=1),
        ranking("d0", turn=1, query="new york"),
    ]
    examples = make_examples(rankings, FILTER, SPLITS).examples["train"]
    assert describe_examples(examples, QUESTIONS) == {
        "examples": 3,
        "questions": 1,
        "positives": 3,
        "different_positives": 2,
        "positives_that_are_gold": 2,
        "positives_from_lists_with_gold_first": 1,
        "positives_by_turn": {0: 1, 1: 2},
        "negatives": 3,
        "negatives_by_example": {0: 1, 1: 1, 2: 1},
        "empty_reasonings": 1,
        "reasoning_words": {"min": 3, "p10": 3.1, "median": 3.5, "mean": 3.5, "p90": 3.9, "max": 4},
        "leaks_in_query": 0.3333,
        "leaks_in_reasoning": 0.3333,
        "leaks": 0.6667,
    }
    assert describe_examples([], QUESTIONS)["leaks"] is None
