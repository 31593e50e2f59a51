from typing import Any

import pytest

from agentir.drsynth.examples import GoldGuard, make_example, make_examples
from agentir.drsynth.report import describe_examples
from agentir.records import Candidate, Document, QAItem, Ranking, SubQuery, TrainingExample

QUESTIONS = {
    "q": QAItem(qid="q", question="?", answers=("New York",), gold_docids=("d0", "own")),
    "h": QAItem(qid="h", question="?", answers=(), gold_docids=("held", "held unread")),
    "v": QAItem(qid="v", question="?", answers=("no",), gold_docids=("dev", "dev unread")),
}
SPLITS: Any = {"q": "train", "h": "heldout", "v": "dev"}
TEXTS = {
    "d0": "zero",
    "d0 copy": " Zero ",
    "own": "o",
    "held": "h",
    "held copy": "H",
    "dev": "v",
    "dev copy": "ｖ",
    "own copy": "o",
    "blank": "",
    "d1": "",
}
DOCUMENTS = {docid: Document(docid=docid, text=text, title=docid) for docid, text in TEXTS.items()}
GUARD = GoldGuard(QUESTIONS.values(), SPLITS, DOCUMENTS)


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


def example(*order: str, ranked: int | None = None, **sizes: int) -> tuple[TrainingExample, dict[Any, int]]:
    made, passed_over = make_example(ranking(*order, ranked=ranked), GUARD, **sizes)
    assert made is not None
    return made, dict(passed_over)


def test_the_first_is_the_positive_and_the_last_seven_are_the_negatives() -> None:
    made, passed_over = example(*(f"d{n}" for n in range(20)))
    assert made.positive_docids == ("d0",)
    assert made.negative_docids == tuple(f"d{n}" for n in range(13, 20))
    assert made.oracle_order == tuple(f"d{n}" for n in range(20))
    assert made.gold_docids == ("d0", "own")
    assert passed_over == {}


def test_what_must_not_be_a_negative_is_passed_over_and_the_one_before_it_taken() -> None:
    end = ("own", "held", "dev", "d0 copy", "held copy", "own copy", "blank", "d99")
    made, passed_over = example(*(f"d{n}" for n in range(10)), *end, num_negatives=3)
    assert made.negative_docids == ("d9", "blank", "d99")
    assert passed_over == {
        "own_gold": 1, "heldout_gold": 1, "dev_gold": 1, "same_text_as_positive": 1, "same_text_as_gold": 2,
    }  # fmt: skip


def test_documents_above_the_negatives_taken_are_not_counted_as_passed_over() -> None:
    made, passed_over = example("d0", "d3", "own", "d1", "d2", num_negatives=2)
    assert (made.negative_docids, passed_over) == (("d1", "d2"), {})


@pytest.mark.parametrize(
    ("shown", "ranked", "negatives", "passed_over"),
    [
        (20, 20, range(13, 20), 0),
        (20, 17, range(10, 17), 0),
        (20, 14, range(10, 14), 3),
        (20, 10, (), 7),
        (20, 4, (), 3),
        (20, 1, (), 0),
        (7, 6, (4, 5), 3),
        (3, 2, (), 1),
        (15, 15, range(8, 15), 0),
        (7, 7, range(1, 7), 0),
        (3, 3, (1, 2), 0),
        (2, 2, (1,), 0),
        (1, 1, (), 0),
    ],
)
def test_negatives_of_a_partly_ranked_list_stand_in_the_worse_half_of_what_was_shown(
    shown: int, ranked: int, negatives: tuple[int, ...], passed_over: int
) -> None:
    """An answer that was cut off has fewer or none; a list ranked in full, however short, gives all but the positive."""
    made, counts = example(*(f"d{n}" for n in range(shown)), ranked=ranked)
    assert made.negative_docids == tuple(f"d{n}" for n in negatives)
    assert made.oracle_order == tuple(f"d{n}" for n in range(ranked))
    assert counts == ({"better_half": passed_over} if passed_over else {})


def test_what_is_excluded_is_made_up_for_from_the_better_half_of_a_full_ranking_only() -> None:
    order = ("d0", "d1", "d2", "own copy", "d3", "d4", "own", "d5")
    made, passed_over = example(*order, num_negatives=4)
    assert made.negative_docids == ("d2", "d3", "d4", "d5")
    assert passed_over == {"own_gold": 1, "same_text_as_gold": 1}
    made, passed_over = example(*order, "d6", ranked=8, num_negatives=4)
    assert made.negative_docids == ("d4", "d5")
    assert passed_over == {"own_gold": 1, "same_text_as_gold": 1, "better_half": 2}


def test_several_positives_are_taken_from_the_front_and_are_never_negatives() -> None:
    made, _ = example("d0", "d1", "d2", num_positives=2)
    assert (made.positive_docids, made.negative_docids) == (("d0", "d1"), ("d2",))
    made, _ = example("d0", "d1", "d2", "d3", num_positives=3)
    assert (made.positive_docids, made.negative_docids) == (("d0", "d1", "d2"), ("d3",))
    made, _ = example("d0", num_positives=2)
    assert (made.positive_docids, made.negative_docids) == (("d0",), ())


def test_a_failed_ranking_gives_no_example() -> None:
    assert make_example(ranking("d0", "d1", ranked=0), GUARD) == (None, {})


def test_examples_are_sorted_by_side_and_everything_left_out_is_counted() -> None:
    made = make_examples(
        [
            ranking("d0", "d1"),
            ranking("d5", "d1", "dev", ranked=2),
            ranking("d0", "d1", ranked=0),
            ranking("d0", qid="unknown"),
            ranking("held", "dev", "d1", qid="h"),
            ranking("d1", "d2", qid="v"),
        ],
        GUARD,
        SPLITS,
    )
    assert {split: len(examples) for split, examples in made.examples.items()} == {"train": 2, "dev": 1, "heldout": 1}
    assert made.counts == {
        "rerank_failed": 1,
        "rankings_of_unknown_questions": 1,
        "partly_ranked_lists": 1,
        "positive_is_heldout_gold": 0,
    }
    assert made.passed_over["train"] == {"better_half": 1}
    assert made.passed_over["heldout"] == {"dev_gold": 1}
    assert [one.gold_docids for split in SPLITS.values() for one in made.examples[split]] == [
        ("d0", "own"),
        ("d0", "own"),
        ("held", "held unread"),
        ("dev", "dev unread"),
    ]


@pytest.mark.parametrize("positive", ["held", "dev", "held copy", "dev copy", "held unread", "dev unread"])
def test_what_the_evaluation_asks_for_is_no_positive_to_train_on(positive: str) -> None:
    rankings = [ranking(positive, "d1"), ranking(positive, "d1", qid="h"), ranking("d0", positive, "d2", turn=1)]
    made = make_examples(rankings, GUARD, SPLITS)
    assert {split: [one.subquery.turn for one in examples] for split, examples in made.examples.items()} == {
        "train": [1],
        "dev": [],
        "heldout": [0],
    }
    assert made.counts["positive_is_heldout_gold"] == 1
    several = make_examples([ranking("d0", positive, "d2")], GUARD, SPLITS, num_positives=2)
    assert (several.examples["train"], several.counts["positive_is_heldout_gold"]) == ([], 1)


@pytest.mark.parametrize(
    ("positive", "kept"),
    [
        ("held", False),
        ("held copy", False),
        ("held unread", False),
        ("dev", True),
        ("dev copy", True),
        ("dev unread", True),
        ("own", True),
    ],
)
def test_a_development_positive_may_be_development_gold_but_not_heldout_gold(positive: str, kept: bool) -> None:
    """In the end, a model may be trained on the development questions, too."""
    for order, num_positives in (((positive, "d1"), 1), (("d1", positive, "d2"), 2)):
        made = make_examples([ranking(*order, qid="v")], GUARD, SPLITS, num_positives=num_positives)
        assert [one.positive_docids for one in made.examples["dev"]] == ([order[:num_positives]] if kept else [])
        assert made.counts["positive_is_heldout_gold"] == (not kept)


@pytest.mark.parametrize(
    ("text", "answers", "leaks"),
    [
        ("She died in new york.", ("New York",), 1),
        ("Newyork", ("New York", "no"), 0),
        ("was it 1978-11-15?", ("x", "15"), 1),
        ("Ｎｅｗ Ｙｏｒｋ", ("New York",), 1),
        ("東京都の人口", ("東京",), 1),
        ("anything", ("", "..."), 0),
        ("anything", (), 0),
    ],
)
def test_an_answer_leaks_by_the_rule_of_the_slices(text: str, answers: tuple[str, ...], leaks: int) -> None:
    questions = {"q": QAItem(qid="q", question="?", answers=answers)}
    examples = make_examples([ranking("d0", "d1", query=text)], GUARD, SPLITS).examples["train"]
    described = describe_examples(examples, questions)
    assert (described["leaks"], described["leaks_in_query"], described["leaks_in_reasoning"]) == (leaks, leaks, 0)


def test_a_set_of_examples_is_described_in_numbers() -> None:
    rankings = [
        ranking("d0", "d1", "d2", reasoning="one two three", gold_first=2),
        ranking("d1", "d2", reasoning="New York it is", query="Who?", turn=1),
        ranking("d0", turn=1, query="new york"),
    ]
    examples = make_examples(rankings, GUARD, SPLITS).examples["train"]
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
