"""DR-Synth in one call, in memory: for notebooks and small sets; `agentir synth run` is what survives a kill."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agentir.agent.episode import Agent
from agentir.agent.prompts import SYSTEM
from agentir.chat.model import ChatModel
from agentir.drsynth.candidates import CandidateLists, ListMaker, ListOptions
from agentir.drsynth.examples import ExampleRules, ExampleSet, GoldGuard, make_examples
from agentir.drsynth.extraction import ExtractionOptions, extract
from agentir.drsynth.gold import resolve_gold
from agentir.drsynth.oracle import Oracle, OracleSettings
from agentir.drsynth.requests import OracleTask
from agentir.drsynth.splits import split_questions
from agentir.errors import AgentirError, BudgetError, ChatError, InputError
from agentir.jsonl import Rejects
from agentir.records import QAItem, Ranking, Trajectory
from agentir.search.index import Index
from agentir.search.retriever import Retriever
from agentir.tools.search import SNIPPET_WORDS, SearchTools
from agentir.tools.toolset import Toolset

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """What came of each step.

    Attributes:
        trajectories: one a question; failed ones have the status "failed" and an error.
        rankings: of the searches in the others.
        examples: the training examples by split, with what was left out.
        extraction: what `agentir.drsynth.extraction.extract` counted.
        left_out: how many sub-queries have no ranking, by reason, and how many episodes failed.
        gold: what became of gold documents that questions name by title or URL, in numbers.
    """

    trajectories: tuple[Trajectory, ...]
    rankings: tuple[Ranking, ...]
    examples: ExampleSet
    extraction: Counter[str]
    left_out: Counter[str]
    gold: dict[str, int]


async def synthesize(
    items: Sequence[QAItem],
    index: Index | str | Path,
    model: ChatModel,
    *,
    oracle_model: ChatModel | None = None,
    agent: Agent | None = None,
    lists: ListOptions | None = None,
    extraction: ExtractionOptions | None = None,
    rules: ExampleRules | None = None,
    num_at_once: int = 16,
) -> Synthesis:
    """Lets an agent answer questions, an oracle rank what could have been found for its searches, and makes examples.

    Args:
        items: the questions, with answers (the oracle is not asked about others) and gold documents by id, title or URL;
            their `split` is kept, others are for training.
        index: an index with BM25, or its folder.
        model: what the agent thinks with.
        oracle_model: what ranks; default: `model`.
        agent: answers; default: one that searches the index with BM25, one call a turn, as DR-Synth's does.
        lists: what the oracle is shown.
        extraction: how sub-queries are taken; default: AgentIR's way.
        rules: what becomes positive and negative; default: AgentIR's way.
        num_at_once: episodes, then lists, under way.

    Raises:
        AgentirError: all episodes failed.
        BudgetError: the budget is used up.
        InputError: two questions have one id, or questions given to different sides share a gold document.
    """
    if repeated := [qid for qid, count in Counter(item.qid for item in items).items() if count > 1]:
        raise InputError(f"qid: expected one question an id, found several of {repeated[0]!r}")
    lists = lists or ListOptions()
    with ExitStack() as stack:
        opened = index if isinstance(index, Index) else stack.enter_context(Index.open(index))
        retriever = Retriever(opened, None, snippet_words=SNIPPET_WORDS)
        with_gold, gold = await asyncio.to_thread(resolve_gold, items, opened.folder.parent, Rejects())
        splits = split_questions(with_gold)
        questions = {item.qid: item for item in with_gold}
        answering = agent or _agent(model, retriever)

        async def episode(item: QAItem) -> Trajectory:
            return await answering.run(item.question, qid=item.qid)

        trajectories = await _each(episode, items, num_at_once)
        failed = [trajectory.error for trajectory in trajectories if trajectory.status == "failed"]
        if trajectories and len(failed) == len(trajectories):
            raise AgentirError(f"all {len(failed)} episodes failed, the first: {failed[0]}")
        subqueries, counts = extract(trajectories, questions, extraction or ExtractionOptions())
        candidates = CandidateLists(ListMaker(opened.pack, retriever.searcher, lists), subqueries, questions, gold)
        tasks = await asyncio.to_thread(list, candidates.make({}))
        oracle = Oracle(oracle_model or model, OracleSettings(form=lists.form, seed=lists.seed))
        rankings = await _rank(oracle, tasks, num_at_once)
        candidates.left_out["episodes_failed"] += len(failed)
        candidates.left_out["oracle_failed"] += len(tasks) - len(rankings)
        named = {docid for ranking in rankings for docid in ranking.order}
        named |= {docid for item in with_gold for docid in item.gold_docids}
        guard = GoldGuard(with_gold, splits, {document.docid: document for document in opened.pack.find(named)})
        examples = make_examples(rankings, guard, splits, rules or ExampleRules())
    return Synthesis(
        trajectories=tuple(trajectories),
        rankings=tuple(rankings),
        examples=examples,
        extraction=counts,
        left_out=+candidates.left_out,
        gold=gold,
    )


def _agent(model: ChatModel, retriever: Retriever) -> Agent:
    toolset = Toolset([SearchTools(retriever).search], max_calls=1)
    return Agent(name=model.name, model=model, toolset=toolset, system=SYSTEM)


async def _rank(oracle: Oracle, tasks: Sequence[OracleTask], num_at_once: int) -> list[Ranking]:
    """The rankings that the oracle gave; where its server gave no answer there is none, and a warning says why."""
    errors: list[ChatError] = []

    async def rank(task: OracleTask) -> Ranking | None:
        try:
            return (await oracle.rank(task)).ranking
        except BudgetError:
            raise
        except ChatError as error:
            errors.append(error)
            return None

    found = await _each(rank, tasks, num_at_once)
    if errors:
        text = f"{len(errors)} of {len(tasks)} sub-queries have no ranking; the first error: {errors[0]}"
        warnings.warn(text, stacklevel=3)
    return [ranking for ranking in found if ranking is not None]


async def _each(work: Callable[[T], Awaitable[R]], given: Iterable[T], num_at_once: int) -> list[R]:
    """What the work gives for each, in order, so many at once; the first error stops all of it."""
    places = asyncio.Semaphore(num_at_once)

    async def one(value: T) -> R:
        async with places:
            return await work(value)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(value)) for value in given]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
