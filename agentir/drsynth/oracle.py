"""The oracle: a language model that knows the answer and ranks a sub-query's candidates, once or several times."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import TypeAdapter

from agentir.agent.journal import Journal
from agentir.chat.model import ChatModel, Generation
from agentir.drsynth.requests import OracleTask
from agentir.drsynth.votes import agreement, combine
from agentir.drsynth.windows import WindowedRanking
from agentir.errors import ContextOverflowError
from agentir.records import STRICT, Message, Ranking, Usage, Vote
from agentir.rerank import AnswerForm, ParsedAnswer, oracle_messages, parse_listwise, ranking_schema

Failure = Literal["", "unparsable", "context_overflow"]
ANSWER_RETRIES = 2
_GENERATION = TypeAdapter(Generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleSettings:
    """How the oracle is asked.

    Attributes:
        form: how it writes rankings; with "json" the server is given the schema, too.
        window: how many candidates it sees at once; None: all.
        step: how far the window moves; None: half of it.
        votes: how often it ranks the list.
        answer_retries: how often an answer that cannot be read, or was cut, is asked for again.
        seed: fixes the order in which further votes see the list.
    """

    form: AnswerForm = "brackets"
    window: int | None = None
    step: int | None = None
    votes: int = 1
    answer_retries: int = ANSWER_RETRIES
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOutcome:
    """What the oracle made of one sub-query, and what that took.

    Attributes:
        ranking: of its candidates; votes that could not be read are kept in it, and nothing is ranked without one that could.
        usage: of all requests, repeated ones too, and those of an earlier start that a journal gave back.
        num_requests: how often the model was asked.
        num_repaired: answers that held a ranking, but not of every passage exactly once.
        failure: why a vote is missing, empty where none is: an answer could not be read, also when asked for again, or the
            passages are longer than the model's context, after which no further vote is asked for.
        error: what the server said where they are longer.
        num_same_text: documents that were not shown because another candidate has the same text.
        num_gold_cut: gold documents that were not shown because there are more of them than places.
        num_gold_not_in_index: gold documents that were not shown because the index lacks them.
    """

    __pydantic_config__ = STRICT

    ranking: Ranking
    usage: Usage
    num_requests: int
    num_repaired: int
    failure: Failure = ""
    error: str = ""
    num_same_text: int = 0
    num_gold_cut: int = 0
    num_gold_not_in_index: int = 0


class Oracle:
    """Ranks candidates by asking a chat model; may be asked for many sub-queries at once.

    Args:
        model: the model.
        settings: how it is asked.
    """

    def __init__(self, model: ChatModel, settings: OracleSettings | None = None) -> None:
        self.model = model
        self.settings = settings or OracleSettings()

    async def rank(self, task: OracleTask, journal: Journal | None = None) -> LabelOutcome:
        """Ranks the candidates of a sub-query.

        The first vote sees the pool as it is, each further one in an order of its own that the seed fixes. Where gold
        documents were put in front, all votes see that order, so that they stay there. The ranking is that of
        `agentir.drsynth.votes.combine`.

        Args:
            task: the sub-query with its candidates.
            journal: takes every generation, and gives back those of an earlier start.

        Raises:
            ChatError: the server gave no answer; of the sub-query only the journal is kept. That the messages are too long
                is an outcome, not an error.
        """
        pool, asked = task.pool, _Asked(self.model, self.settings, task, journal or Journal())
        votes: list[Vote] = []
        failure: Failure = ""
        error = ""
        for number in range(self.settings.votes):
            shown = self._order(task, number)
            try:
                votes.append(await asked.vote(shown))
            except ContextOverflowError as overflow:
                votes.append(Vote(order=tuple(shown), ranked_count=0, parsed=False, response=""))
                failure, error = "context_overflow", str(overflow)
                break
            if not votes[-1].parsed:
                failure = "unparsable"
        order, ranked_count = combine(votes, len(pool.candidates))
        ranking = Ranking(
            subquery=task.subquery,
            candidates=pool.candidates,
            votes=tuple(votes),
            order=tuple(pool.candidates[position].docid for position in order),
            ranked_count=ranked_count,
            num_gold_first=pool.num_gold_first,
            agreement=agreement(votes),
        )
        if journal is not None and not ranked_count:  # such an outcome may be held back
            journal.flush()
        return LabelOutcome(
            ranking=ranking,
            usage=asked.usage,
            num_requests=asked.num_requests,
            num_repaired=asked.num_repaired,
            failure=failure,
            error=error,
            num_same_text=pool.num_same_text,
            num_gold_cut=pool.num_gold_cut,
            num_gold_not_in_index=task.num_gold_not_in_index,
        )

    def _order(self, task: OracleTask, number: int) -> list[int]:
        """The positions of the candidates in the order in which a vote sees them."""
        order = list(range(len(task.pool.candidates)))
        if number and not task.pool.num_gold_first:
            random.Random(f"{self.settings.seed} {task.subquery.subqid} vote {number}").shuffle(order)
        return order


class _Asked:
    """The requests for one sub-query, and what they took."""

    def __init__(self, model: ChatModel, settings: OracleSettings, task: OracleTask, journal: Journal) -> None:
        self.model = model
        self.settings = settings
        self.task = task
        self.journal = journal
        self.usage = Usage()
        self.num_requests = 0
        self.num_repaired = 0

    async def vote(self, shown: Sequence[int]) -> Vote:
        """One ranking of the whole list; a window whose answer cannot be read spoils it, and no further one is asked."""
        ranking = WindowedRanking(shown, self.settings.window, self.settings.step)
        responses: list[str] = []
        for start, end in ranking.bounds:
            answer = await self._answer(ranking.order[start:end])
            responses.append(answer.vote.response)
            if not answer.vote.parsed:
                response = _joined(responses, len(ranking.bounds))
                return Vote(order=tuple(shown), ranked_count=0, parsed=False, response=response)
            self.num_repaired += answer.repaired
            ranking.place((start, end), answer.vote)
        return ranking.vote(_joined(responses, len(ranking.bounds)))

    async def _answer(self, positions: Sequence[int]) -> ParsedAnswer:
        """The answer for the candidates of one window; the last one, where none could be read."""
        item, count = self.task.item, len(positions)
        passages = [self.task.passages[position] for position in positions]
        asked = oracle_messages(item.question, item.answers, self.task.subquery.query, passages, self.settings.form)
        messages = [
            Message(role="system" if message["role"] == "system" else "user", content=message["content"])
            for message in asked
        ]
        schema = ranking_schema(count) if self.settings.form == "json" else None
        for _ in range(1 + self.settings.answer_retries):
            self.num_requests += 1
            generation = await self.journal.step(
                "generation", _GENERATION, lambda: self.model.generate(messages, schema=schema)
            )
            self.usage += generation.usage
            # Where a dialect marks answers, a model may give its ranking without the mark.
            said = generation.answer or (generation.text if generation.finish == "stop" else "")
            parsed = parse_listwise(said, count)
            if parsed.vote.parsed:
                return parsed
        # An answer that was cut is only there as text, which shows what happened.
        return replace(parsed, vote=replace(parsed.vote, response=generation.answer or generation.text))


def _joined(responses: Sequence[str], num_windows: int) -> str:
    """What a vote keeps of the answers: the only window's as it is, those of several as a JSON list."""
    return responses[0] if num_windows == 1 else json.dumps(responses, ensure_ascii=False)
