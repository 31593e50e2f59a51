from dataclasses import replace
from typing import Any

import pytest

from agentir.drsynth.examples import (
    ExampleRules,
    GoldGuard,
    document_of,
    make_example,
    make_examples,
    spread_over_turns,
)
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


def example(*order: str, ranked: int | None = None, **rules: Any) -> tuple[TrainingExample, dict[Any, int]]:
    made, passed_over = make_example(ranking(*order, ranked=ranked), GUARD, ExampleRules(**rules))
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
        "below_min_agreement": 0,
        "over_max_per_question": 0,
        "without_agreement": 4,
        "negatives_of_unknown_score": 0,
    }
    assert made.ranked_shares == {"train": [1, 2 / 3], "dev": [1], "heldout": [1]}
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
    several = make_examples([ranking("d0", positive, "d2")], GUARD, SPLITS, ExampleRules(num_positives=2))
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
        made = make_examples([ranking(*order, qid="v")], GUARD, SPLITS, ExampleRules(num_positives=num_positives))
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
    rankings[0] = replace(rankings[0], agreement=0.5)
    rankings[1] = replace(rankings[1], agreement=-0.25)
    made = make_examples(rankings, GUARD, SPLITS)
    assert describe_examples(made.examples["train"], QUESTIONS, made.ranked_shares["train"]) == {
        "examples": 3,
        "questions": 1,
        "examples_by_question": {"min": 3, "p10": 3, "median": 3, "mean": 3, "p90": 3, "max": 3},
        "positives": 3,
        "different_positives": 2,
        "positives_that_are_gold": 2,
        "positives_from_lists_with_gold_first": 1,
        "positives_by_turn": {0: 1, 1: 2},
        "negatives": 3,
        "negatives_by_example": {0: 1, 1: 1, 2: 1},
        "empty_reasonings": 1,
        "reasoning_words": {"min": 3, "p10": 3.1, "median": 3.5, "mean": 3.5, "p90": 3.9, "max": 4},
        "agreement": {"min": -0.25, "p10": -0.175, "median": 0.125, "mean": 0.125, "p90": 0.425, "max": 0.5},
        "without_agreement": 1,
        "ranked_share": {"min": 1, "p10": 1, "median": 1, "mean": 1, "p90": 1, "max": 1},
        "leaks_in_query": 0.3333,
        "leaks_in_reasoning": 0.3333,
        "leaks": 0.6667,
    }
    assert describe_examples([], QUESTIONS)["leaks"] is None


def scored(**scores: float | None) -> Ranking:
    """A ranking in the order given, with the retriever's scores."""
    candidates = tuple(
        Candidate(docid=docid, source="gold" if score is None else "retrieved", score=score)
        for docid, score in scores.items()
    )
    return replace(ranking(*scores), candidates=candidates)


@pytest.mark.parametrize(
    ("gap", "negatives", "passed_over"), [(0, 3, 0), (1, 3, 0), (2, 2, 1), (3, 1, 2), (4, 0, 3), (9, 0, 3)]
)
def test_a_negative_stands_so_many_ranks_behind_the_last_positive(gap: int, negatives: int, passed_over: int) -> None:
    made, counts = example("d0", "d1", "d2", "d3", "d4", num_positives=2, min_rank_gap=gap)
    assert made.negative_docids == ("d2", "d3", "d4")[3 - negatives :]
    assert counts == ({"rank_gap": passed_over} if passed_over else {})


def test_a_rank_gap_above_the_negatives_taken_passes_nothing_over() -> None:
    made, counts = example(*(f"d{n}" for n in range(9)), num_negatives=4, min_rank_gap=5)
    assert (made.negative_docids, counts) == (("d5", "d6", "d7", "d8"), {})
    made, counts = example(*(f"d{n}" for n in range(9)), num_negatives=4, min_rank_gap=6)
    assert (made.negative_docids, counts) == (("d6", "d7", "d8"), {"rank_gap": 1})


@pytest.mark.parametrize(
    ("scores", "negatives", "passed_over", "unknown"),
    [
        ({"d0": 10, "d1": 9.5, "d2": 9.6, "d3": 11, "d4": 1}, ("d1", "d4"), 2, 0),
        ({"d0": 10, "d1": 1, "d2": 2, "d3": 3, "d4": 11}, ("d2", "d3"), 1, 0),
        ({"d0": None, "d1": 1, "d2": 2, "d3": 3, "d4": 11}, ("d3", "d4"), 0, 2),
        ({"d0": -1, "d1": 1, "d2": 2, "d3": 3, "d4": 11}, ("d3", "d4"), 0, 2),
        ({"d0": 10, "d1": 1, "d2": 2, "d3": None, "d4": 11}, ("d2", "d3"), 1, 1),
        ({"d0": 10, "d1": 1, "d2": 2, "d3": -5, "d4": 0}, ("d3", "d4"), 0, 0),
    ],
)
def test_what_the_retriever_scores_close_to_the_positive_is_passed_over(
    scores: dict[str, float | None], negatives: tuple[str, ...], passed_over: int, unknown: int
) -> None:
    rules = ExampleRules(num_negatives=2, max_negative_score_ratio=0.95)
    made = make_examples([scored(**scores)], GUARD, SPLITS, rules)
    assert made.examples["train"][0].negative_docids == negatives
    assert made.passed_over["train"] == ({"score_above_ratio": passed_over} if passed_over else {})
    assert made.counts["negatives_of_unknown_score"] == unknown
    assert make_examples([scored(**scores)], GUARD, SPLITS).passed_over["train"] == {}


def test_of_several_positives_the_lowest_known_score_counts() -> None:
    rules = ExampleRules(num_positives=3, max_negative_score_ratio=1)
    made, _ = make_example(scored(d0=None, d1=10, d2=4, d3=5, d4=4), GUARD, rules)
    assert made is not None and made.negative_docids == ("d4",)


def test_other_chunks_of_a_positive_document_and_chunks_of_gold_documents_are_no_negatives() -> None:
    order = ("w#2", "w#7", "w", "x#2", "own#1", "held#0", "dev#12", "w#x", "#1")
    made, passed_over = example(*order)
    assert made.negative_docids == ("x#2", "w#x", "#1")
    assert passed_over == {"same_document_as_positive": 2, "own_gold": 1, "heldout_gold": 1, "dev_gold": 1}
    made, _ = example(*order, exclude_same_document=False)
    assert made.negative_docids == ("w#7", "w", "x#2", "w#x", "#1")
    left_out = make_examples([ranking("held#3", "d1"), ranking("dev#3", "d1")], GUARD, SPLITS)
    assert (left_out.examples["train"], left_out.counts["positive_is_heldout_gold"]) == ([], 2)
    assert [document_of(docid) for docid in ("a#1", "a#1#2", "a#", "#3", "a")] == ["a", "a#1", "a#", "#3", "a"]


def test_rankings_whose_votes_disagree_are_left_out_and_those_without_agreement_kept() -> None:
    rankings = [
        replace(ranking("d0", "d1", turn=n), agreement=agreement) for n, agreement in enumerate((0.4, 0.39, None))
    ]
    made = make_examples(rankings, GUARD, SPLITS, ExampleRules(min_agreement=0.4))
    assert [(one.subquery.turn, one.agreement) for one in made.examples["train"]] == [(0, 0.4), (2, None)]
    assert (made.counts["below_min_agreement"], made.counts["without_agreement"]) == (1, 1)
    assert len(make_examples(rankings, GUARD, SPLITS).examples["train"]) == 3


def test_a_question_gives_at_most_so_many_examples_spread_over_its_turns() -> None:
    rankings = [ranking("d0", "d1", turn=turn, call=call) for turn in range(10) for call in range(2)]
    rankings += [ranking("held", "d1", qid="h", turn=turn) for turn in range(2)] + [ranking("d0", ranked=0)]
    kept = {}
    for seed in range(20):
        made = make_examples(rankings, GUARD, SPLITS, ExampleRules(max_per_question=5, seed=seed))
        again = make_examples(rankings, GUARD, SPLITS, ExampleRules(max_per_question=5, seed=seed))
        assert made == again
        assert (len(made.examples["heldout"]), made.counts["over_max_per_question"]) == (2, 15)
        assert made.counts["rerank_failed"] == 1
        kept[seed] = tuple((one.subquery.turn, one.subquery.call) for one in made.examples["train"])
        assert [turn // 2 for turn, _ in kept[seed]] == [0, 1, 2, 3, 4]
    assert len(set(kept.values())) > 10


@pytest.mark.parametrize(
    ("number", "turns"),
    [(0, []), (1, None), (3, [0, 3, 7]), (4, [0, 0, 3, 7]), (5, [0, 0, 0, 3, 7]), (9, [0, 0, 0, 3, 7])],
)
def test_every_turn_gives_one_before_any_gives_a_second(number: int, turns: list[int] | None) -> None:
    by_turn = {7: ["7a"], 0: ["0a", "0b", "0c"], 3: ["3a"]}
    drawn = spread_over_turns(by_turn, number, "seed")
    assert len(set(drawn)) == len(drawn) == min(number, 5)
    assert turns is None or sorted(int(one[0]) for one in drawn) == turns


@pytest.mark.parametrize("seed", range(3))
def test_where_some_turns_only_can_give_more_those_give_them(seed: int) -> None:
    by_turn = {0: ["0a", "0b"], 1: ["1a"], 2: ["2a", "2b"]}
    drawn = spread_over_turns(by_turn, 4, str(seed))
    assert {one[0] for one in drawn} == {"0", "1", "2"} and len(set(drawn)) == 4
