"""Labelling: an oracle asked for many sub-queries at once, each finished one written down before the next step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

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
        budget: what the model said when the budget was used up, empty while it is not; the rest was not asked for.
    """

    num_labelled: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)
    budget: str = ""


async def label_all(
    tasks: Iterable[OracleTask],
    oracle: Oracle,
    journal: JsonlAppender,
    *,
    concurrency: int = CONCURRENCY,
    on_progress: Callable[[LabelCounts], None] | None = None,
) -> LabelCounts:
    """Has the oracle rank all sub-queries; each `LabelOutcome` becomes a line of the journal as soon as it is there.

    A sub-query for which the server gave no answer is counted and not written down, so that the next run asks for it
    again. When the budget is used up no further sub-query is begun, and those begun go on as far as it still lets them.
    Any other error, and cancelling, stops all of them; what is written down stays.

    Args:
        tasks: those that the journal does not hold yet. They are taken one by one, in a thread (making one may search an
            index), when a place is free.
        oracle: ranks.
        journal: takes the outcomes.
        concurrency: how many sub-queries are worked on at once.
        on_progress: called after each sub-query.
    """
    counts = LabelCounts()
    waiting = iter(tasks)
    turn = asyncio.Lock()

    async def work() -> None:
        while not counts.budget:
            async with turn:
                task = await asyncio.to_thread(_next, waiting)
            if task is None:
                return
            await _label(task, oracle, journal, counts)
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


async def _label(task: OracleTask, oracle: Oracle, journal: JsonlAppender, counts: LabelCounts) -> None:
    try:
        outcome = await oracle.rank(task)
    except BudgetError as error:
        counts.budget = str(error)
    except ChatError as error:
        counts.failed[error.kind] += 1
        counts.first_errors.setdefault(error.kind, str(error))
    else:
        journal.append(outcome)
        counts.num_labelled += 1
