"""Requests to the oracle: a sub-query's candidates with the chat messages that ask for their ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentir.drsynth.pool import CandidatePool
from agentir.embed.template import QueryTemplate
from agentir.records import Document, QAItem, SubQuery
from agentir.rerank import AnswerForm, oracle_messages
from agentir.search.retriever import snippet

PASSAGE_WORDS = 380
"""How much of a candidate the oracle sees; AgentIR shows 512 tokens, about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRequest:
    """One line of a requests file; with a `response` added it is an answer, see `agentir.drsynth.labels`."""

    qid: str
    turn: int
    call: int
    question: str
    answer: str
    query: str
    candidates: tuple[str, ...]
    num_gold_first: int
    messages: Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTask:
    """A sub-query with what the oracle needs to rank its candidates.

    Attributes:
        subquery: the search.
        item: its question.
        pool: the candidates.
        passages: what is shown of each, in the order of the pool.
        num_gold_not_in_index: gold documents of the question that could not be shown, because the index has no such ones.
    """

    subquery: SubQuery
    item: QAItem
    pool: CandidatePool
    passages: tuple[str, ...]
    num_gold_not_in_index: int = 0


def make_task(
    subquery: SubQuery,
    item: QAItem,
    pool: CandidatePool,
    documents: Mapping[str, Document],
    passage_words: int = PASSAGE_WORDS,
) -> OracleTask:
    """Prepares what the oracle is shown: of each candidate its title and the beginning of its text.

    Args:
        subquery: the search.
        item: its question.
        pool: the candidates.
        documents: by docid, all of the pool, and the question's gold documents that the index has.
        passage_words: how many words of each are shown.
    """
    template = QueryTemplate()
    passages = [
        snippet(template.render_document(documents[candidate.docid]), passage_words) for candidate in pool.candidates
    ]
    missing = sum(docid not in documents for docid in item.gold_docids)
    return OracleTask(subquery=subquery, item=item, pool=pool, passages=tuple(passages), num_gold_not_in_index=missing)


def make_request(task: OracleTask, form: AnswerForm = "brackets") -> OracleRequest:
    """Puts a sub-query's candidates before the oracle, all in one list.

    Args:
        task: what is asked.
        form: how the ranking is to be written.
    """
    subquery, item = task.subquery, task.item
    return OracleRequest(
        qid=subquery.qid,
        turn=subquery.turn,
        call=subquery.call,
        question=item.question,
        answer=" / ".join(item.answers),
        query=subquery.query,
        candidates=tuple(candidate.docid for candidate in task.pool.candidates),
        num_gold_first=task.pool.num_gold_first,
        messages=oracle_messages(item.question, item.answers, subquery.query, task.passages, form),
    )
