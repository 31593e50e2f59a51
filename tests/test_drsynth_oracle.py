import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentir.agent.journal import Journal
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel, said
from agentir.drsynth.oracle import LabelOutcome, Oracle, OracleSettings
from agentir.drsynth.pool import candidate_pool
from agentir.drsynth.requests import OracleTask, make_request, make_task
from agentir.errors import BudgetError, ChatError, ContextOverflowError
from agentir.records import Document, Hit, Message, QAItem, SubQuery, Usage
from agentir.rerank import ranking_schema

Reply = Callable[[Sequence[Message]], Generation]
ITEM = QAItem(qid="q", question="Who?", answers=("Ann",), gold_docids=("d3", "gone"))
SUBQUERY = SubQuery(qid="q", turn=0, call=0, question="Who?", reasoning="hidden", query="leader")


def task(num: int = 4, placement: Any = "append") -> OracleTask:
    """A list d0, d1, ... of which the best is the last: passage "worth n"."""
    documents = {f"d{n}": Document(docid=f"d{n}", text=f"worth {n}") for n in range(num)}
    hits = [Hit(docid=docid, score=1.0) for docid in documents]
    pool = candidate_pool(hits, ["d3"] if num > 3 else [], placement, documents=documents, seed="s")
    return make_task(SUBQUERY, ITEM, pool, documents)


def shown(messages: Sequence[Message]) -> list[int]:
    """The worth of the passages, in the order of their numbers."""
    return [int(worth) for worth in re.findall(r"^\[\d+\] worth (\d+)$", messages[1].content, re.MULTILINE)]


def right(messages: Sequence[Message]) -> Generation:
    worth = shown(messages)
    order = sorted(range(len(worth)), key=lambda place: -worth[place])
    text = " > ".join(f"[{place + 1}]" for place in order)
    return Generation(
        reasoning="", text=text, answer=text, usage=Usage(num_calls=1, prompt_tokens=10, completion_tokens=2)
    )


def as_json(messages: Sequence[Message]) -> Generation:
    worth = shown(messages)
    return said(json.dumps({"ranking": sorted(range(1, len(worth) + 1), key=lambda number: -worth[number - 1])}))


def ask(replies: Reply | list[Generation], one: OracleTask, **settings: Any) -> tuple[LabelOutcome, ScriptedModel]:
    model = ScriptedModel(replies)
    return asyncio.run(Oracle(model, OracleSettings(**settings)).rank(one)), model


CUT = Generation(reasoning="", text="[4] > [3] > [2] > [1]", finish="length", usage=Usage(completion_tokens=9))


def test_one_vote_over_one_list() -> None:
    outcome, model = ask(right, task())
    (request,) = model.requests
    assert request.schema is None and request.tools == ()
    assert [{"role": one.role, "content": one.content} for one in request.messages] == make_request(task()).messages
    assert "hidden" not in request.messages[1].content
    ranking = outcome.ranking
    assert ranking.order == ("d3", "d2", "d1", "d0")
    assert [candidate.docid for candidate in ranking.candidates] == ["d0", "d1", "d2", "d3"]
    assert (ranking.ranked_count, ranking.num_gold_first, ranking.agreement) == (4, 0, None)
    assert [(vote.order, vote.response) for vote in ranking.votes] == [((3, 2, 1, 0), "[4] > [3] > [2] > [1]")]
    assert (outcome.num_requests, outcome.num_repaired, outcome.failure) == (1, 0, "")
    assert outcome.usage == Usage(num_calls=1, prompt_tokens=10, completion_tokens=2)
    assert outcome.num_gold_not_in_index == 1


def test_json_answers_come_with_their_schema() -> None:
    outcome, model = ask(as_json, task(), form="json")
    assert model.requests[0].schema == ranking_schema(4)
    assert "as JSON" in model.requests[0].messages[1].content
    assert outcome.ranking.order == ("d3", "d2", "d1", "d0")


def test_windows_rank_a_longer_list_and_keep_all_their_answers() -> None:
    outcome, model = ask(right, task(11), window=4, step=2)
    assert [len(shown(request.messages)) for request in model.requests] == [4, 4, 4, 4, 4]
    assert outcome.ranking.order[:2] == ("d10", "d9")
    assert outcome.ranking.ranked_count == 11
    assert json.loads(outcome.ranking.votes[0].response) == [
        "[4] > [3] > [2] > [1]",
        *["[3] > [4] > [2] > [1]"] * 3,
        "[2] > [3] > [4] > [1]",
    ]
    assert outcome.num_requests == outcome.usage.num_calls == 5


def test_a_window_ranked_in_part_leaves_its_rest_unranked() -> None:
    replies = [said("[4] > [3]"), said("[4] > [3] > [2] > [1]")]
    outcome, _ = ask(replies, task(6), window=4, step=2)
    ranking = outcome.ranking
    assert (ranking.order, ranking.ranked_count) == (("d4", "d5", "d1", "d0", "d2", "d3"), 4)
    assert outcome.num_repaired == 1


def test_a_window_that_cannot_be_read_spoils_the_vote_and_no_further_one_is_asked() -> None:
    outcome, model = ask([said("[4] > [3] > [2] > [1]"), said("No.")], task(8), window=4, step=2, answer_retries=0)
    assert len(model.requests) == 2
    (vote,) = outcome.ranking.votes
    assert (vote.parsed, vote.ranked_count, vote.order) == (False, 0, tuple(range(8)))
    assert json.loads(vote.response) == ["[4] > [3] > [2] > [1]", "No."]


def test_votes_see_orders_of_their_own_and_are_joined() -> None:
    outcome, model = ask(right, task(12), votes=3)
    orders = [shown(request.messages) for request in model.requests]
    assert orders[0] == list(range(12))
    assert all(sorted(order) == orders[0] for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert {vote.order for vote in outcome.ranking.votes} == {tuple(range(11, -1, -1))}
    assert (outcome.ranking.agreement, outcome.ranking.ranked_count) == (1.0, 12)
    again, repeated = ask(right, task(12), votes=3)
    assert again == outcome and repeated.requests == model.requests
    assert ask(right, task(12), votes=3, seed=1)[1].requests[1:] != model.requests[1:]


def test_an_oracle_that_follows_the_order_shown_agrees_with_nobody() -> None:
    """What is read off the place of a passage, not off its text, must not look like agreement."""
    outcome, _ = ask(lambda messages: said(" > ".join(f"[{n + 1}]" for n in range(30))), task(30), votes=5)
    assert outcome.ranking.agreement is not None and abs(outcome.ranking.agreement) < 0.3


def test_with_gold_in_front_all_votes_see_that_order() -> None:
    outcome, model = ask(right, task(12, "gold_first"), votes=3)
    assert [shown(request.messages)[0] for request in model.requests] == [3, 3, 3]
    assert len({request.messages for request in model.requests}) == 1
    assert outcome.ranking.num_gold_first == 1


@pytest.mark.parametrize("bad", [said("I cannot."), said(""), CUT], ids=["prose", "empty", "cut"])
def test_an_answer_that_cannot_be_used_is_asked_for_again(bad: Generation) -> None:
    outcome, model = ask([bad, bad, right(make_messages())], task())
    assert len({request.messages for request in model.requests}) == 1
    assert (outcome.num_requests, outcome.failure, outcome.ranking.ranked_count) == (3, "", 4)
    assert outcome.usage.completion_tokens == 2 + 2 * bad.usage.completion_tokens


def make_messages() -> list[Message]:
    return [Message(role="user", content=message["content"]) for message in make_request(task()).messages]


@pytest.mark.parametrize("bad", [said("I cannot."), CUT], ids=["prose", "cut"])
def test_an_answer_that_stays_unusable_is_kept_as_a_vote_that_ranks_nothing(bad: Generation) -> None:
    outcome, model = ask([bad] * 3, task())
    assert len(model.requests) == 3
    assert outcome.failure == "unparsable"
    assert (outcome.ranking.ranked_count, outcome.ranking.order) == (0, ("d0", "d1", "d2", "d3"))
    assert [(vote.parsed, vote.response) for vote in outcome.ranking.votes] == [(False, bad.text)]


def test_a_vote_that_cannot_be_read_is_left_out_of_the_ranking() -> None:
    replies = iter([said("No."), None, None])
    outcome, _ = ask(lambda messages: next(replies) or right(messages), task(), votes=3, answer_retries=0)
    assert [vote.parsed for vote in outcome.ranking.votes] == [False, True, True]
    assert (outcome.ranking.ranked_count, outcome.ranking.agreement, outcome.failure) == (4, 1.0, "unparsable")


def raising(error: Exception) -> Reply:
    def reply(messages: Sequence[Message]) -> Generation:
        raise error

    return reply


def test_messages_longer_than_the_context_are_an_outcome_of_their_own_and_not_sent_again() -> None:
    outcome, model = ask(raising(ContextOverflowError("too long")), task(), votes=3)
    assert len(model.requests) == 1
    assert (outcome.failure, outcome.ranking.ranked_count, outcome.num_requests) == ("context_overflow", 0, 1)
    assert [(vote.parsed, vote.response) for vote in outcome.ranking.votes] == [(False, "")]


@pytest.mark.parametrize("error", [ChatError("timeout", "late"), BudgetError("spent")])
def test_other_errors_of_the_server_reach_the_caller(error: ChatError) -> None:
    with pytest.raises(type(error)) as caught:
        ask(raising(error), task())
    assert caught.value is error


def test_a_single_candidate_is_a_list_too() -> None:
    outcome, _ = ask(lambda messages: said("[1]"), task(1), window=4, step=2)
    assert (outcome.ranking.order, outcome.ranking.ranked_count) == (("d0",), 1)


@pytest.mark.parametrize("last", [right, "overflow"])
def test_a_sub_query_goes_on_from_its_journal_at_every_answer(tmp_path: Path, last: Any) -> None:
    """Two votes of three windows, whose second and fifth answers are asked for twice."""

    def model(num_before: int) -> ScriptedModel:
        def reply(messages: Sequence[Message]) -> Generation:
            number = num_before + len(scripted.requests)
            if number in (2, 6):
                return CUT
            if number == 8 and last == "overflow":
                raise ContextOverflowError("m: too long")
            return right(messages)

        scripted = ScriptedModel(reply)
        return scripted

    def rank(num_before: int, path: Path) -> tuple[LabelOutcome, int]:
        asked, journal = model(num_before), Journal(path)
        outcome = asyncio.run(
            Oracle(asked, OracleSettings(window=4, step=2, votes=2)).rank(task(8, "shuffle"), journal)
        )
        return outcome, len(asked.requests)

    path = tmp_path / "whole.jsonl"
    whole, num_asked = rank(0, path)
    assert (num_asked, whole.num_requests) == (8, 8)
    assert whole.failure == ("context_overflow" if last == "overflow" else "")
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 7, "an overflow is no generation, and the last one is in the outcome"
    num_whole = 5 if last == "overflow" else 6
    assert whole.usage == Usage(num_calls=num_whole, prompt_tokens=10 * num_whole, completion_tokens=2 * num_whole + 18)
    for num_kept in range(len(lines) + 1):
        for torn in (b"", b'{"kind": "gener'):
            part = tmp_path / "part.jsonl"
            part.write_bytes(b"".join(lines[:num_kept]) + torn)
            assert rank(num_kept, part) == (whole, 8 - num_kept)
            assert part.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("finish", "failure"), [("stop", ""), ("length", "unparsable")])
def test_a_ranking_without_the_mark_of_an_answer_is_read_unless_it_was_cut(finish: Any, failure: str) -> None:
    unmarked = Generation(reasoning="", text="[4] > [3] > [2] > [1]", finish=finish)
    outcome, _ = ask([unmarked], task(), answer_retries=0)
    assert outcome.failure == failure and (outcome.ranking.ranked_count == 4) == (not failure)
