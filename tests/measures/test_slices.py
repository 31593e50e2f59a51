"""Slices: who belongs where."""

from __future__ import annotations

import pytest

from agentir.errors import ConfigError
from agentir.measures.slices import contains, contains_title, slice_names, slices_of
from agentir.records import QAItem, SubQuery, TrainingExample

HARD = {"hard questions": {"dataset": "hard"}}


def example(
    query: str = "where did she die", reasoning: str = "", turn: int = 0, call: int = 0, num_gold_first: int = 0
) -> TrainingExample:
    subquery = SubQuery(qid="q", turn=turn, call=call, question="?", reasoning=reasoning, query=query)
    return TrainingExample(
        subquery=subquery,
        positive_docids=("d1",),
        negative_docids=(),
        oracle_order=(),
        num_gold_first=num_gold_first,
    )


def qa(*answers: str, dataset: str = "MuSiQue") -> QAItem:
    return QAItem(qid="q", question="?", answers=answers, metadata={"dataset": dataset})


@pytest.mark.parametrize(
    ("text", "phrase", "there"),
    [
        ("Reo Fortune's wife", "reo fortune", True),
        ("the FORTUNE of Reo", "Reo Fortune", False),
        ("who was Ann?", "Ann", True),
        ("Annie Hall", "Ann", False),
        ("nobody knows", "no", False),
        ("the answer is no.", "no", True),
        ("Ｎｏｒｗａｙ (full width)", "norway", True),
        ("the Spider-Man film", "Spider Man", True),
        ("STRASSE in Berlin", "Straße", True),
        ("Zoë by composition", "Zoe\u0308", True),
        ("was in 19170", "1917", False),
        ("東京都の人口", "東京都", True),
        ("東京都の人口", "京東", False),
        ("anything", "", False),
        ("anything ...", "...", False),
    ],
)
def test_phrases_are_found_as_whole_words(text: str, phrase: str, there: bool) -> None:
    assert contains(text, phrase) is there


@pytest.mark.parametrize(
    ("text", "title", "there"),
    [
        ("are Dys and Tristesse from Germany", "Dys (Band)", True),
        ("the Dys band", "Dys (Band)", True),
        ("dystopia band", "Dys (Band)", False),
        ("anything", "(film)", False),
        ("the film", "(film)", True),
        ("anything", "", False),
    ],
)
def test_titles_are_found_without_their_parenthesis(text: str, title: str, there: bool) -> None:
    assert contains_title(text, title) is there


@pytest.mark.parametrize(
    ("turn", "call", "first", "later"),
    [(0, 0, True, False), (0, 1, False, False), (1, 0, False, True), (3, 2, False, True)],
)
def test_the_first_search_and_later_turns(turn: int, call: int, first: bool, later: bool) -> None:
    found = slices_of(example(turn=turn, call=call), qa(), [])
    assert ("first turn" in found, "later turns" in found) == (first, later)


@pytest.mark.parametrize(
    ("query", "reasoning", "no_title", "no_leak"),
    [
        ("her place of death", "I need the wife first.", True, True),
        ("Margaret Mead death", "", False, False),
        ("her place of death", "She may be Margaret Mead.", True, False),
        ("died in New York?", "", True, False),
        ("her place of death", "I guess it is new york.", True, False),
    ],
)
def test_titles_and_answers_that_leak(query: str, reasoning: str, no_title: bool, no_leak: bool) -> None:
    found = slices_of(example(query, reasoning), qa("New York", "NYC"), ["Margaret Mead"])
    assert ("gold title not in query" in found, "no leak" in found) == (no_title, no_leak)


def test_every_title_of_several_relevant_documents_counts() -> None:
    found = slices_of(example("Oslo opera"), qa(), ["Bergen", "Oslo (city)"])
    assert "gold title not in query" not in found
    assert {"gold title not in query", "no leak"} <= set(slices_of(example("Oslo opera"), qa(), ["", ""]))


def test_the_kind_of_the_oracles_list() -> None:
    assert "shuffled list" in slices_of(example(), qa(), [])
    found = slices_of(example(num_gold_first=2), qa(), [])
    assert "gold first list" in found
    assert "shuffled list" not in found


def test_metadata_slices_and_intersections() -> None:
    pair = ("hard questions", "gold title not in query")
    both = " & ".join(pair)
    assert both in slices_of(example(), qa(dataset="hard"), [], HARD, [pair])
    assert not {both, "hard questions"} & set(slices_of(example(), qa(dataset="easy"), [], HARD, [pair]))
    assert both not in slices_of(example("Oslo"), qa(dataset="hard"), ["Oslo"], HARD, [pair])
    assert slice_names(HARD, [pair])[-2:] == ("hard questions", both)
    no_such_field = {"two hops": {"num_hops": "2"}}
    assert "two hops" not in slices_of(example(), qa(), [], no_such_field)


@pytest.mark.parametrize(
    ("slices", "intersections", "text"),
    [
        ({"all": {"dataset": "hard"}}, [], "built-in"),
        ({"mine": {}}, [], "at least one metadata field"),
        (HARD, [("hard questions", "gold title not in the query")], "unknown slice 'gold title not in the query'"),
        (HARD, [("hard questions",)], "two slices"),
    ],
)
def test_slices_that_cannot_be_are_refused(
    slices: dict[str, dict[str, str]], intersections: list[tuple[str, ...]], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        slice_names(slices, intersections)
