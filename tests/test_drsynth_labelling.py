import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentir.agent.journal import JournalFolder
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel, said
from agentir.drsynth.label_file import LabelFile, NoRankingsError
from agentir.drsynth.labelling import LabelCounts, label_all
from agentir.drsynth.oracle import LabelOutcome, Oracle
from agentir.drsynth.pool import candidate_pool
from agentir.drsynth.requests import OracleTask, make_task
from agentir.errors import BudgetError, ChatError, ContextOverflowError
from agentir.jsonl import read_records
from agentir.records import Document, Hit, Message, QAItem, SubQuery

NUM = 40


def open_labels(path: Path) -> LabelFile:
    return LabelFile(path, JournalFolder(path.with_suffix(".open")), "depth 3, passage_words 380, window none")


def tasks(skip: Container[SubQuery] = ()) -> Iterator[OracleTask]:
    documents = {docid: Document(docid=docid, text=docid) for docid in "abc"}
    hits = [Hit(docid=docid, score=1.0) for docid in documents]
    for number in range(NUM):
        subquery = SubQuery(qid=f"q{number}", turn=0, call=0, question="?", reasoning="", query=f"search {number}")
        pool = candidate_pool(hits, ["c"], "shuffle", documents=documents, seed=subquery.subqid)
        if subquery not in skip:
            yield make_task(subquery, QAItem(qid=subquery.qid, question="?", answers=("x",)), pool, documents)


def asked_for(messages: Sequence[Message]) -> str:
    found = re.search(r"search (\d+)", messages[1].content)
    assert found
    return f"q{found[1]}_turn0"


def label(path: Path, model: ScriptedModel, concurrency: int = 8) -> LabelCounts:
    """One start of a run that skips what the journal holds."""
    with open_labels(path) as labels:
        return asyncio.run(label_all(tasks(labels), Oracle(model), labels, concurrency=concurrency))


def in_order(path: Path) -> list[LabelOutcome]:
    return sorted(read_records(path, LabelOutcome), key=lambda one: int(one.ranking.subquery.qid[1:]))


@pytest.fixture
def uninterrupted(tmp_path: Path) -> list[LabelOutcome]:
    counts = label(tmp_path / "whole.jsonl", ScriptedModel(lambda messages: said("[2] > [1] > [3]")))
    assert (counts.num_labelled, counts.failed, counts.stopped) == (NUM, Counter(), "")
    return in_order(tmp_path / "whole.jsonl")


def test_a_run_cancelled_in_the_middle_goes_on_without_asking_twice(
    tmp_path: Path, uninterrupted: list[LabelOutcome]
) -> None:
    path = tmp_path / "labels.jsonl"
    answered: list[str] = []

    async def first() -> None:
        def reply(messages: Sequence[Message]) -> Generation:
            answered.append(asked_for(messages))
            if len(answered) == 17:
                run.cancel()
            return said("[2] > [1] > [3]")

        with open_labels(path) as labels:
            run = asyncio.create_task(label_all(tasks(), Oracle(ScriptedModel(reply)), labels, concurrency=4))
            with pytest.raises(asyncio.CancelledError):
                await run

    asyncio.run(first())
    kept = [one.ranking.subquery.subqid for one in read_records(path, LabelOutcome)]
    assert set(kept) <= set(answered) and 13 <= len(kept) <= 17
    path.write_bytes(path.read_bytes() + b'{"ranking": {"subq')
    model = ScriptedModel(lambda messages: said("[2] > [1] > [3]"))
    label(path, model)
    asked = [asked_for(request.messages) for request in model.requests]
    assert sorted([*asked, *kept]) == sorted(f"q{number}_turn0" for number in range(NUM))
    assert in_order(path) == uninterrupted


def test_sub_queries_without_an_answer_are_counted_by_cause_and_asked_for_again(
    tmp_path: Path, uninterrupted: list[LabelOutcome]
) -> None:
    path = tmp_path / "labels.jsonl"

    def reply(messages: Sequence[Message]) -> Generation:
        number = int(asked_for(messages)[1:].partition("_")[0])
        if number % 10 == 3:
            raise ChatError("timeout", f"late {number}")
        if number == 5:
            raise ChatError("server_error", "status 500")
        return said("[2] > [1] > [3]")

    counts = label(path, ScriptedModel(reply), concurrency=1)
    assert (counts.num_labelled, counts.failed) == (NUM - 5, Counter(timeout=4, server_error=1))
    assert counts.first_errors == {"timeout": "late 3", "server_error": "status 500"}
    model = ScriptedModel(lambda messages: said("[2] > [1] > [3]"))
    assert label(path, model).num_labelled == len(model.requests) == 5
    assert in_order(path) == uninterrupted


def test_a_used_up_budget_begins_nothing_more_and_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    calls = iter(range(1000))

    def reply(messages: Sequence[Message]) -> Generation:
        if next(calls) >= 10:
            raise BudgetError("budget used up: 10 of max_calls 10")
        return said("[2] > [1] > [3]")

    model = ScriptedModel(reply)
    counts = label(path, model, concurrency=4)
    assert (counts.num_labelled, counts.failed) == (10, Counter())
    assert counts.stopped == "budget used up: 10 of max_calls 10; raise it"
    assert len(in_order(path)) == 10
    assert len(model.requests) <= 14


def test_another_error_stops_the_run_as_it_is(tmp_path: Path) -> None:
    def broken() -> Iterator[OracleTask]:
        yield next(tasks())
        raise OSError("disk full")

    model = ScriptedModel(lambda messages: said("[2] > [1] > [3]"))
    with open_labels(tmp_path / "labels.jsonl") as labels, pytest.raises(OSError, match="disk full"):
        asyncio.run(label_all(broken(), Oracle(model), labels, concurrency=4))


def test_lists_are_made_one_by_one_beside_the_event_loop_and_only_when_a_place_is_free(tmp_path: Path) -> None:
    made: list[float] = []
    finished: list[int] = []
    threads: set[int] = set()
    ahead: list[int] = []

    def watched() -> Iterator[OracleTask]:
        for task in tasks():
            threads.add(threading.get_ident())
            ahead.append(len(made) - len(finished))
            made.append(time.monotonic())
            yield task

    model = ScriptedModel(lambda messages: said("[2] > [1] > [3]"))
    with open_labels(tmp_path / "labels.jsonl") as labels:
        run = label_all(watched(), Oracle(model), labels, concurrency=3, on_progress=lambda counts: finished.append(1))
        asyncio.run(run)
    assert len(made) == len(finished) == NUM
    assert threading.get_ident() not in threads
    assert max(ahead) < 3


def too_long(messages: Sequence[Message]) -> Generation:
    raise ContextOverflowError("m: the maximum context length is 4096 tokens")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            too_long,
            r"none of the first 16 lists gave a ranking; 16 are longer than the model's context \(depth 3, passage_words 380, "
            r"window none; the server: m: the maximum context length is 4096 tokens\): set a smaller window \(such as 20\) or "
            "fewer passage_words or a smaller depth, or serve the model with a longer maximal length",
        ),
        (
            lambda messages: said("I cannot."),
            r"none of the first 16 lists .* the answers for 16 cannot be read \(.*; the first: 'I cannot.'\): ",
        ),
    ],
)
def test_when_none_of_the_first_lists_gives_a_ranking_nothing_is_written(
    tmp_path: Path, reply: Callable[[Sequence[Message]], Generation], told: str
) -> None:
    path = tmp_path / "labels.jsonl"
    model = ScriptedModel(reply)
    with pytest.raises(NoRankingsError, match=told):
        label(path, model)
    assert not path.exists() and len({asked_for(request.messages) for request in model.requests}) <= 16 + 8


def test_lists_without_a_ranking_before_the_first_that_has_one_are_kept_and_not_asked_about_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "labels.jsonl"
    bad = {f"q{number}_turn0" for number in (*range(15), 20)}

    def reply(messages: Sequence[Message]) -> Generation:
        return too_long(messages) if asked_for(messages) in bad else said("[2] > [1] > [3]")

    assert label(path, ScriptedModel(reply), concurrency=1).num_labelled == NUM
    found = in_order(path)
    assert {one.ranking.subquery.subqid for one in found if one.failure == "context_overflow"} == bad
    assert {one.error for one in found} == {"", "m: the maximum context length is 4096 tokens"}
    model = ScriptedModel(reply)
    assert label(path, model).num_labelled == 0 and not model.requests


def test_few_lists_without_a_ranking_are_written_once_all_are_there(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    with open_labels(path) as labels:
        few = [task for number, task in enumerate(tasks()) if number < 3]
        asyncio.run(label_all(few, Oracle(ScriptedModel(too_long)), labels))
        assert path.stat().st_size == 0
        labels.complete()
    assert len(in_order(path)) == 3


def test_outcomes_are_read_from_the_file_in_any_order(tmp_path: Path, uninterrupted: list[LabelOutcome]) -> None:
    with open_labels(tmp_path / "whole.jsonl") as labels:
        subqueries = [one.ranking.subquery for one in uninterrupted]
        assert list(labels.read(subqueries)) == uninterrupted
        other = replace(subqueries[0], query="another search at the same place")
        assert other not in labels and list(labels.read([other])) == [] and len(labels) == NUM


def test_a_server_that_goes_away_in_the_middle_stops_the_run(tmp_path: Path) -> None:
    def reply(messages: Sequence[Message]) -> Generation:
        if int(asked_for(messages)[1:].partition("_")[0]) >= 10:
            raise ChatError("connection", "gone")
        return said("[2] > [1] > [3]")

    model = ScriptedModel(reply)
    counts = label(tmp_path / "labels.jsonl", model, concurrency=1)
    assert (counts.num_labelled, len(model.requests)) == (10, 26)
    assert counts.stopped == "16 sub-queries in a row failed, the last: connection: gone; mend that"
