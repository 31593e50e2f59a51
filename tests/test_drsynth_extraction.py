from dataclasses import replace
from typing import Any

import pytest

from agentir.drsynth.extraction import ExtractionOptions, extract
from agentir.records import QAItem, SubQuery, ToolCall, ToolResult, Trajectory, Turn

QUESTIONS = {"q": QAItem(qid="q", question="Who?", answers=("x",))}


def turn(index: int, reasoning: str, *arguments: Any, name: str = "search", error: bool = False) -> Turn:
    """A turn with a call for each of the arguments; `error` marks the result of the last."""
    calls = tuple(ToolCall(call_id=f"{index}.{n}", name=name, arguments=value) for n, value in enumerate(arguments))
    results = tuple(ToolResult(call_id=call.call_id, content="r", error=error and call is calls[-1]) for call in calls)
    return Turn(index=index, reasoning=reasoning, text="", calls=calls, results=results)


def extracted(*turns: Turn, qid: str = "q", **options: Any) -> tuple[list[SubQuery], dict[str, int]]:
    trajectory = Trajectory(qid=qid, agent="a", turns=turns, answer="x", status="completed")
    subqueries, counts = extract([trajectory], QUESTIONS, ExtractionOptions(**options))
    expected = {"subqueries": len(subqueries), "trajectories": 1}
    assert expected.items() <= counts.items()
    return subqueries, {name: count for name, count in counts.items() if count and name not in expected}


def keys(subqueries: list[SubQuery]) -> list[tuple[str, str, str]]:
    return [(subquery.subqid, subquery.reasoning, subquery.query) for subquery in subqueries]


def test_searches_become_sub_queries() -> None:
    subqueries, counts = extracted(
        turn(0, "first", {"query": "a"}),
        turn(1, "second", {"query": ["b", "c"]}, {"query": "d"}),
        turn(2, "", {"query": "e"}),
    )
    assert keys(subqueries) == [
        ("q_turn0", "first", "a"),
        ("q_turn1", "second", "b"),
        ("q_turn1.1", "second", "c"),
        ("q_turn1.2", "second", "d"),
        ("q_turn2", "", "e"),
    ]
    assert {subquery.question for subquery in subqueries} == {"Who?"}
    assert counts == {"empty_reasonings": 1}


def test_what_cannot_be_used_is_counted_and_keeps_its_number() -> None:
    subqueries, counts = extracted(
        turn(
            0,
            "r",
            None,
            {"query": True},
            {"query": ["x", None]},
            {"query": []},
            {"text": "y"},
            {"query": ["a", " ", "b"]},
        ),
        turn(1, "r", {"goal": "g"}, name="visit"),
        turn(2, "r", {}, name=""),
    )
    assert keys(subqueries) == [("q_turn0.5", "r", "a"), ("q_turn0.7", "r", "b")]
    assert counts == {"calls_with_bad_arguments": 6, "blank_queries": 1, "calls_of_other_tools": 1}


def test_numbers_are_queries_as_they_are_for_the_search_tool() -> None:
    subqueries, counts = extracted(turn(0, "r", {"query": 1984}, {"query": ["a", 2.5]}))
    assert keys(subqueries) == [("q_turn0", "r", "1984"), ("q_turn0.1", "r", "a"), ("q_turn0.2", "r", "2.5")]
    assert not counts


def not_run(one: Turn, *places: int) -> Turn:
    """The turn, with the calls at these places answered by an error and not run."""
    results = enumerate(one.results)
    refused = (replace(result, error=True, run=False) if place in places else result for place, result in results)
    return replace(one, results=tuple(refused))


@pytest.mark.parametrize(
    ("places", "kept"),
    [
        ((1, 2), [("q_turn0", "r", "a")]),
        ((0, 2), [("q_turn0.1", "r", "b"), ("q_turn0.2", "r", "c")]),
        ((0, 1), [("q_turn0.3", "r", "d")]),
        ((0, 1, 2), []),
    ],
)
def test_calls_that_were_not_run_are_counted_and_keep_their_numbers(places: Any, kept: list[Any]) -> None:
    one = not_run(turn(0, "r", {"query": "a"}, {"query": ["b", "c"]}, {"query": "d"}), *places)
    subqueries, counts = extracted(one, turn(1, "", {"query": "e"}))
    assert keys(subqueries) == [*kept, ("q_turn1", "", "e")]
    assert counts == {"calls_not_run": len(places), "empty_reasonings": 1}


def test_a_call_that_could_not_be_read_is_counted_once() -> None:
    subqueries, counts = extracted(
        not_run(turn(0, "r", None, {"query": "a"}), 0), not_run(turn(1, "r", {"query": "b"}, name="find"), 0)
    )
    assert keys(subqueries) == [("q_turn0.1", "r", "a")]
    assert counts == {"calls_with_bad_arguments": 1, "calls_of_other_tools": 1}


@pytest.mark.parametrize("finish", ["stop", "calls"])
def test_a_reasoning_that_answers_the_loops_own_message_is_dropped_unless_kept(finish: str) -> None:
    nudged = replace(turn(1, "I was cut off", {"query": "b"}), prompted="Your last message was cut off.", finish=finish)
    turns = (turn(0, "r", {"query": "a"}), nudged, turn(2, "s", {"query": "c"}))
    subqueries, counts = extracted(*turns)
    assert keys(subqueries) == [("q_turn0", "r", "a"), ("q_turn1", "", "b"), ("q_turn2", "s", "c")]
    assert counts == {"reasonings_dropped_after_nudge": 1, "empty_reasonings": 1}
    kept, counts = extracted(*turns, failed_reasoning="keep")
    assert kept[1].reasoning == "I was cut off" and not counts


def test_a_users_message_in_a_transcript_is_no_nudge() -> None:
    asked = replace(turn(1, "Now the second question.", {"query": "b"}), prompted="And where?")
    subqueries, counts = extracted(turn(0, "r", {"query": "a"}), asked)
    assert subqueries[1].reasoning == "Now the second question." and not counts


def test_other_tools_can_be_named_as_searches() -> None:
    subqueries, counts = extracted(turn(0, "r", {"query": "a"}, name="web_search"), search_tools=("web_search",))
    assert keys(subqueries) == [("q_turn0", "r", "a")]
    assert not counts


def test_a_reasoning_may_go_to_the_first_query_only() -> None:
    subqueries, counts = extracted(turn(0, "r", {"query": [" ", "a", "b"]}, {"query": "c"}), parallel_reasoning="first")
    assert keys(subqueries) == [("q_turn0.1", "r", "a"), ("q_turn0.2", "", "b"), ("q_turn0.3", "", "c")]
    assert counts == {"blank_queries": 1, "reasonings_given_to_first_only": 1, "empty_reasonings": 2}


@pytest.mark.parametrize(
    ("before", "dropped"),
    [
        (turn(0, "", {"query": "a"}, error=True), True),
        (turn(0, "", {"query": "a"}, {"url": "u"}, name="visit", error=True), True),
        (turn(0, "", {"query": "a"}, None), True),
        (turn(0, "", None, {"query": "a"}), False),
        (turn(0, "", {"query": "a"}), False),
        (turn(0, "no call"), False),
    ],
)
def test_a_reasoning_after_a_failed_call_is_dropped_unless_kept(before: Turn, dropped: bool) -> None:
    said = turn(1, "hm")
    subqueries, counts = extracted(before, said, turn(2, "it failed", {"query": "b"}))
    assert subqueries[-1].reasoning == ("" if dropped else "it failed")
    assert counts.get("reasonings_dropped_after_failure", 0) == dropped
    kept, _ = extracted(before, said, turn(2, "it failed", {"query": "b"}), failed_reasoning="keep")
    assert kept[-1].reasoning == "it failed"


def test_empty_reasonings_are_kept_or_filtered_and_counted() -> None:
    turns = (turn(0, "r", {"query": "a"}), turn(1, "", {"query": "b"}), turn(2, "s", {"query": "c"}))
    assert len(extracted(*turns)[0]) == 3
    subqueries, counts = extracted(*turns, empty_reasoning="filter")
    assert keys(subqueries) == [("q_turn0", "r", "a"), ("q_turn2", "s", "c")]
    assert counts == {"empty_reasonings": 1, "filtered_empty_reasonings": 1}


def test_turns_after_the_limit_are_counted() -> None:
    subqueries, counts = extracted(*(turn(n, "r", {"query": "a"}) for n in range(5)), max_turns=2)
    assert [subquery.turn for subquery in subqueries] == [0, 1]
    assert counts == {"turns_after_max_turns": 3}


def test_trajectories_of_unknown_questions_and_without_searches_are_counted() -> None:
    assert extracted(turn(0, "r", {"query": "a"}), qid="other") == ([], {"trajectories_of_unknown_questions": 1})
    assert extracted(turn(0, "answer")) == ([], {"trajectories_without_searches": 1})


def test_turns_that_were_cut_are_not_used_and_no_turn_changes_its_number() -> None:
    cut = replace(turn(1, "half a thought", {"query": "b"}), finish="length")
    subqueries, counts = extracted(turn(0, "r", {"query": "a"}), cut, turn(2, "s", {"query": "c"}))
    assert keys(subqueries) == [("q_turn0", "r", "a"), ("q_turn2", "s", "c")]
    assert counts == {"cut_turns": 1}


@pytest.mark.parametrize(
    ("status", "answer", "used", "reason"),
    [
        ("failed", "x", "all", "failed_trajectories"),
        ("incomplete", "", "all", None),
        ("incomplete", " ", "answered", "trajectories_without_answer"),
        ("forced", "y", "answered", None),
        ("completed", "y", "correct", "trajectories_with_other_answer"),
        ("completed", "It is X.", "correct", None),
        ("failed", "x", "correct", "failed_trajectories"),
    ],
)
def test_which_trajectories_are_used(status: str, answer: str, used: Any, reason: str | None) -> None:
    trajectory = Trajectory(qid="q", agent="a", turns=(turn(0, "r", {"query": "a"}),), answer=answer, status=status)
    subqueries, counts = extract([trajectory], QUESTIONS, ExtractionOptions(trajectories_used=used))
    assert len(subqueries) == (reason is None)
    left_out = ("failed_trajectories", "trajectories_without_answer", "trajectories_with_other_answer")
    assert {name for name in left_out if counts[name]} == ({reason} if reason else set())
