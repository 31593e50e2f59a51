"""Labelling: an oracle asked for many sub-queries at once, each finished one written down before the next is begun."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agentir.agent.journal import Journal, JournalFolder
from agentir.drsynth.false_start import GIVE_UP_AFTER, FalseStart
from agentir.drsynth.oracle import Oracle
from agentir.drsynth.requests import OracleTask
from agentir.errors import BudgetError, ChatError
from agentir.jsonl import JsonlAppender

CONCURRENCY = 256


@dataclass(slots=True)
class LabelCounts:
    """How far a run has come.

    Attributes:
        num_labelled: sub-queries whose ranking was written down in this run.
        failed: sub-queries without one, by the kind of the `ChatError`.
        first_errors: the text of the first error of each kind.
        stopped: why the rest was not asked for, and what to do about it; empty where nothing stopped the run.
    """

    num_labelled: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)
    stopped: str = ""


async def label_all(
    tasks: Iterable[OracleTask],
    oracle: Oracle,
    labels: JsonlAppender,
    *,
    journals: JournalFolder | None = None,
    concurrency: int = CONCURRENCY,
    give_up_after: int | None = GIVE_UP_AFTER,
    on_progress: Callable[[LabelCounts], None] | None = None,
) -> LabelCounts:
    """Has the oracle rank all sub-queries; each `LabelOutcome` becomes a line of the labels as soon as it is there.

    A sub-query for which the server gave no answer is counted and not written down, so that the next run asks for what
    its journal lacks. When the budget is used up no further sub-query is begun, and those begun go on as far as it still
    lets them; the same where all the first ones failed because the server refused them or could not be reached. Any other
    error, and cancelling, stops all of them; what is written down stays.

    Args:
        tasks: those that the labels do not hold yet. They are taken one by one, in a thread (making one may search an
            index), when a place is free.
        oracle: ranks.
        labels: takes the outcomes.
        journals: keep the answers for sub-queries that are not finished, by `subqid`; None: nothing keeps them.
        concurrency: how many sub-queries are worked on at once.
        give_up_after: how many the first ones are; None: it never gives up.
        on_progress: called after each sub-query.
    """
    counts = LabelCounts()
    waiting = iter(tasks)
    turn = asyncio.Lock()
    start = FalseStart("sub-queries", give_up_after)

    async def work() -> None:
        while True:
            async with turn:
                task = None if counts.stopped else await asyncio.to_thread(_next, waiting)
            if task is None or counts.stopped:
                return
            subqid = task.subquery.subqid
            journal = Journal() if journals is None else journals.open(subqid)
            try:
                outcome = await oracle.rank(task, journal)
            except BudgetError as error:
                counts.stopped = f"{error}; raise it"
            except ChatError as error:
                counts.failed[error.kind] += 1
                counts.first_errors.setdefault(error.kind, str(error))
                counts.stopped = counts.stopped or start.failed(error.kind, str(error))
            else:
                labels.append(outcome)
                counts.num_labelled += 1
                start.worked()
                if journals is not None:
                    journals.remove(subqid)
            finally:
                journal.close()
            if on_progress is not None:
                on_progress(counts)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return counts


def _next(tasks: Iterator[OracleTask]) -> OracleTask | None:
    return next(tasks, None)  # a thread's StopIteration cannot be passed on
