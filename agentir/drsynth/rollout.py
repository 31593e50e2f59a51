"""Rollouts: many episodes of one agent at once, kept as they finish."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentir.agent.episode import Agent
from agentir.drsynth.episodes import EpisodeStore
from agentir.drsynth.failure_streak import FailureStreak
from agentir.errors import AgentirError, BudgetError
from agentir.records import QAItem


@dataclass(slots=True)
class RolloutState:
    """Where a rollout stands.

    Attributes:
        num_running: episodes under way.
        num_done: episodes finished by this start.
        failed: qid -> what its episode failed of, "kind: text".
        stopped: why no more episodes were begun, and what to do about it; empty where nothing stopped them.
    """

    num_running: int = 0
    num_done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def failed_by_cause(self) -> Counter[str]:
        """Failed episodes by the kind of their error."""
        return Counter(error.partition(":")[0] for error in self.failed.values())

    def failures(self, num: int) -> list[str]:
        """Lines that tell the first failed episodes, so many at most, and how many more there are."""
        told = [f"{qid}: {error}" for qid, error in list(self.failed.items())[:num]]
        return told + [f"... and {len(self.failed) - num} more"] * (len(self.failed) > num)


async def roll_out(
    agent: Agent,
    items: Iterable[QAItem],
    store: EpisodeStore,
    *,
    num_at_once: int,
    streak: FailureStreak | None = None,
    state: RolloutState | None = None,
) -> RolloutState:
    """Runs an episode for each question that has none yet.

    An episode that fails does not stop the others; it is not kept, but its journal is, so that a later start goes on with
    it. When the budget is used up, episodes under way are left where they are, and no more are begun. Neither are they when
    many in a row fail because a server refuses them or cannot be reached; those under way go on.

    Args:
        agent: what answers.
        items: the questions; consumed as places become free.
        store: keeps the episodes.
        num_at_once: most episodes under way.
        streak: says when failures are too many in a row; default: after 16.
        state: filled in, so that it can be read while this runs or after it was cancelled; default: a new one.
    """
    state = state or RolloutState()
    streak = streak or FailureStreak("episodes")
    waiting = iter(item for item in items if item.qid not in store.finished)

    async def work() -> None:
        for item in waiting:
            if state.stopped:
                return
            state.num_running += 1
            try:
                failure = await episode(item)
            except BudgetError as error:
                state.stopped = f"{error}; raise it"
                return
            finally:
                state.num_running -= 1
            if failure:
                state.failed[item.qid] = failure
                kind, _, text = failure.partition(": ")
                state.stopped = state.stopped or streak.failed(item.qid, kind, text)
            else:
                streak.worked()
                state.num_done += 1

    async def episode(item: QAItem) -> str:
        """Runs one and keeps it; returns what it failed of, empty where it did not."""
        try:
            trajectory = await agent.run(item.question, qid=item.qid, journal=store.journal(item.qid))
        except (BudgetError, OSError):
            raise
        except AgentirError as error:
            return f"journal: {error}"
        except Exception as error:  # a fault of ours must not cost the others what they have paid for
            traceback.print_exc()
            return f"internal: {type(error).__name__}: {error}"
        if trajectory.status == "failed":
            return trajectory.error
        store.finish(trajectory)
        return ""

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return state
