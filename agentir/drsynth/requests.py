"""Requests to the oracle: a sub-query's candidates with the chat messages that ask for their ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentir.drsynth.pool import CandidatePool
from agentir.embed.template import QueryTemplate
from agentir.records import Document, QAItem, SubQuery
from agentir.rerank import oracle_messages
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


def make_request(
    subquery: SubQuery,
    item: QAItem,
    pool: CandidatePool,
    documents: Mapping[str, Document],
    passage_words: int = PASSAGE_WORDS,
) -> OracleRequest:
    """Puts a sub-query's candidates before the oracle, each by its title and the beginning of its text.

    Args:
        subquery: the search.
        item: its question.
        pool: the candidates.
        documents: by docid, all of the pool.
        passage_words: how many words of each are shown.
    """
    docids = tuple(candidate.docid for candidate in pool.candidates)
    passages = [snippet(QueryTemplate().render_document(documents[docid]), passage_words) for docid in docids]
    return OracleRequest(
        qid=subquery.qid,
        turn=subquery.turn,
        call=subquery.call,
        question=item.question,
        answer=" / ".join(item.answers),
        query=subquery.query,
        candidates=docids,
        num_gold_first=pool.num_gold_first,
        messages=oracle_messages(item.question, item.answers, subquery.query, passages),
    )
