"""Candidate lists: what is retrieved for a sub-query, joined with its question's gold documents, ready for an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from agentir.config import Field, Section
from agentir.corpus.pack import CorpusPack
from agentir.drsynth.pool import POOL_SIZE, Placement, candidate_pool
from agentir.drsynth.requests import PASSAGE_WORDS, OracleTask, make_task
from agentir.embed.encoder import QueryTooLongError
from agentir.records import QAItem, SearchQuery, SubQuery
from agentir.rerank import AnswerForm
from agentir.search.protocol import Searcher


class ListOptions(Section):
    """How lists are made and shown to the oracle."""

    depth: int = Field(default=POOL_SIZE, ge=1)
    """How many candidates the oracle ranks, gold documents among them; not for recorded answers."""
    placement: Placement = "shuffle"
    """Where gold documents stand: mixed in (shuffle), at the end (append), or in front as AgentIR has them
    (gold_first), which anchors the oracle; not for recorded answers."""
    passage_words: int = Field(default=PASSAGE_WORDS, ge=1)
    """How many words of a candidate the oracle sees, about AgentIR's 512 tokens; not for recorded answers."""
    seed: int = 0
    """Fixes the shuffle, and the order in which further votes see the list; not for recorded answers."""
    form: AnswerForm = "brackets"
    """How the oracle writes rankings: [2] > [1] (brackets), or as JSON by a schema that the server is given (json)."""


class ListMaker:
    """Makes one list at a time; may be used by many threads at once.

    Args:
        pack: the texts.
        searcher: finds the candidates, by the query alone.
        options: how lists are made.
    """

    def __init__(self, pack: CorpusPack, searcher: Searcher, options: ListOptions) -> None:
        self._pack = pack
        self._searcher = searcher
        self._options = options

    def make(self, subquery: SubQuery, item: QAItem) -> OracleTask:
        """The list of a sub-query; it may be empty.

        Raises:
            QueryTooLongError: the query alone exceeds the limit of the encoder that searches.
        """
        options = self._options
        hits = self._searcher.search([SearchQuery(query=subquery.query)], options.depth)[0]
        looked_for = (*(hit.docid for hit in hits), *item.gold_docids)
        documents = {document.docid: document for document in self._pack.find(looked_for)}
        pool = candidate_pool(
            hits,
            [docid for docid in item.gold_docids if docid in documents],
            options.placement,
            size=options.depth,
            documents=documents,
            seed=f"{options.seed} {subquery.subqid}",
        )
        return make_task(subquery, item, pool, documents, options.passage_words)


class CandidateLists:
    """The lists of many sub-queries, made one by one, and counts of the sub-queries without one.

    Args:
        maker: makes each.
        subqueries: of all questions.
        questions: by qid.
        gold: see below.

    Attributes:
        num_subqueries: how many there are.
        subqueries: those that can be asked about: their question is known and has an answer.
        left_out: how many others there are, by reason, as far as lists were made.
        gold: what became of gold documents that questions name by title or URL, in numbers.
    """

    def __init__(
        self, maker: ListMaker, subqueries: Sequence[SubQuery], questions: Mapping[str, QAItem], gold: Mapping[str, int]
    ) -> None:
        self.gold = gold
        self.num_subqueries = len(subqueries)
        self.left_out: Counter[str] = Counter()
        self.subqueries: list[SubQuery] = []
        self._maker = maker
        self._questions = questions
        for subquery in subqueries:
            item = questions.get(subquery.qid)
            if item is None or not item.answers:
                self.left_out["of_unknown_questions" if item is None else "of_questions_without_answer"] += 1
            else:
                self.subqueries.append(subquery)

    def make(self, done: Container[SubQuery]) -> Iterator[OracleTask]:
        """The list of each sub-query that is not done."""
        for subquery in self.subqueries:
            if subquery in done:
                continue
            try:
                task = self._maker.make(subquery, self._questions[subquery.qid])
            except QueryTooLongError:
                self.left_out["query_too_long"] += 1
                continue
            if not task.pool.candidates:
                self.left_out["without_candidates"] += 1
                continue
            yield task
