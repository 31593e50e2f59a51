"""DR-Synth in one call, in memory: for notebooks and small sets; `agentir synth run` is what survives a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentir.agent.episode import Agent
from agentir.corpus.pack import CorpusPack
from agentir.drsynth.candidates import ListMaker
from agentir.drsynth.examples import ExampleRules, ExampleSet, GoldGuard, make_examples
from agentir.drsynth.extraction import ExtractionOptions, extract
from agentir.drsynth.oracle import Oracle
from agentir.drsynth.requests import OracleTask
from agentir.drsynth.splits import split_questions
from agentir.records import QAItem, Ranking, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """What came of each step.

    Attributes:
        trajectories: one a question; failed ones have the status "failed" and an error.
        rankings: of all searches in the others.
        examples: the training examples by split, with what was left out.
    """

    trajectories: tuple[Trajectory, ...]
    rankings: tuple[Ranking, ...]
    examples: ExampleSet


async def synthesize(
    agent: Agent,
    oracle: Oracle,
    maker: ListMaker,
    pack: CorpusPack,
    items: Sequence[QAItem],
    *,
    extraction: ExtractionOptions | None = None,
    rules: ExampleRules | None = None,
    num_at_once: int = 16,
) -> Synthesis:
    """Lets an agent answer questions, an oracle rank what could have been found for its searches, and makes examples.

    Args:
        agent: answers.
        oracle: ranks; knows the answers.
        maker: makes the candidate lists.
        pack: the corpus.
        items: the questions with answers and gold docids; their `split` is kept, others are for training.
        extraction: how sub-queries are taken; default: AgentIR's way.
        rules: what becomes positive and negative; default: AgentIR's way.
        num_at_once: episodes, then lists, under way.

    Raises:
        ChatError: the oracle's server gave no answer, or the budget is used up.
    """
    places = asyncio.Semaphore(num_at_once)
    questions = {item.qid: item for item in items}

    async def episode(item: QAItem) -> Trajectory:
        async with places:
            return await agent.run(item.question, qid=item.qid)

    trajectories = await asyncio.gather(*(episode(item) for item in items))
    subqueries, _ = extract(trajectories, questions, extraction or ExtractionOptions())
    tasks = [maker.make(subquery, questions[subquery.qid]) for subquery in subqueries]

    async def rank(task: OracleTask) -> Ranking:
        async with places:
            return (await oracle.rank(task)).ranking

    rankings = await asyncio.gather(*(rank(task) for task in tasks if task.pool.candidates))
    named = {docid for ranking in rankings for docid in ranking.order} | {d for item in items for d in item.gold_docids}
    splits = split_questions(items)
    guard = GoldGuard(items, splits, {document.docid: document for document in pack.find(named)})
    examples = make_examples(rankings, guard, splits, rules or ExampleRules())
    return Synthesis(trajectories=tuple(trajectories), rankings=tuple(rankings), examples=examples)
