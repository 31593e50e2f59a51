"""Labelling: an oracle asked for many sub-queries at once, each finished one written down before the next is begun."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agentir.drsynth.failure_streak import FailureStreak
from agentir.drsynth.label_file import LabelFile, label_key
from agentir.drsynth.oracle import Oracle
from agentir.drsynth.requests import OracleTask
from agentir.errors import BudgetError, ChatError

CONCURRENCY = 256


@dataclass(slots=True)
class LabelCounts:
    """How far a run has come.

    Attributes:
        num_labelled: sub-queries that the labels took in this run.
        unanswered: the others: key -> kind of the `ChatError`.
        first_errors: the text of the first error of each kind.
        stopped: why the rest was not asked for, and what to do about it; empty where nothing stopped the run.
    """

    num_labelled: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    first_errors: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def failed(self) -> Counter[str]:
        """Unanswered sub-queries by the kind of the `ChatError`."""
        return Counter(self.unanswered.values())


async def label_all(
    tasks: Iterable[OracleTask],
    oracle: Oracle,
    labels: LabelFile,
    *,
    concurrency: int = CONCURRENCY,
    streak: FailureStreak | None = None,
    counts: LabelCounts | None = None,
    on_progress: Callable[[LabelCounts], None] | None = None,
) -> LabelCounts:
    """Has the oracle rank all sub-queries; each `LabelOutcome` becomes a line of the labels as soon as it is there.

    A sub-query for which the server gave no answer is counted and not written down, so that the next run asks for what
    its journal lacks. When the budget is used up no further sub-query is begun, and those begun go on as far as it still
    lets them; the same where many in a row fail because the server refuses them or cannot be reached. Any other error, and
    cancelling, stops all of them; what is written down stays.

    Args:
        tasks: those that the labels do not hold yet. They are taken one by one, in a thread (making one may search an
            index), when a place is free.
        oracle: ranks.
        labels: takes the outcomes; its journals keep the answers for sub-queries that are not finished.
        concurrency: how many sub-queries are worked on at once.
        streak: says when failures are too many in a row; default: after 16.
        counts: filled in, so that it can be read after an error; default: a new one.
        on_progress: called after each sub-query.

    Raises:
        NoRankingsError: none of the first lists gave a ranking.
    """
    counts = counts or LabelCounts()
    streak = streak or FailureStreak("sub-queries")
    waiting = iter(tasks)
    turn = asyncio.Lock()

    async def work() -> None:
        while True:
            async with turn:
                task = None if counts.stopped else await asyncio.to_thread(_next, waiting)
            if task is None or counts.stopped:
                return
            key = label_key(task.subquery)
            journal = labels.journals.open(key)
            try:
                outcome = await oracle.rank(task, journal)
            except BudgetError as error:
                counts.stopped = f"{error}; raise it"
            except ChatError as error:
                counts.unanswered[key] = error.kind
                counts.first_errors.setdefault(error.kind, str(error))
                counts.stopped = counts.stopped or streak.failed(key, error.kind, str(error))
            else:
                streak.worked()
                labels.append(outcome)
                counts.num_labelled += 1
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
