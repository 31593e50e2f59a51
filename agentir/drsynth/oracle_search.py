"""Search with the oracle inside the rollout: the agent sees what an oracle, who knows the answer, put first.

AgentIR's evaluation code can run its reranker so. The rankings are labels as good as those made afterwards, and cost nothing
more; but the agent then walks on ground that no retriever will prepare for it later, so this is not the default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from agentir.drsynth.candidates import ListMaker
from agentir.drsynth.label_file import LabelFile, label_key
from agentir.drsynth.oracle import Oracle
from agentir.embed.encoder import QueryTooLongError
from agentir.errors import RequestError
from agentir.records import QAItem, Ranking, SubQuery
from agentir.search.retriever import Retriever, SearchResponse, SearchResult
from agentir.tools.search import ResultForm, shown_results
from agentir.tools.tool import CallContext, Tool, ToolOutput


class OracleSearch:
    """The tool `search(query)` whose results an oracle has ranked; each ranking is written down before it is shown.

    Where the oracle's answer cannot be read, the agent sees the retriever's order.

    Args:
        retriever: what is searched by `maker`; gives titles and snippets.
        maker: makes the candidate lists.
        oracle: ranks them.
        items: the questions by qid.
        labels: takes each outcome; those of an earlier start are not asked for again.
        k: results a query.
        form: how they are shown.
    """

    def __init__(
        self,
        retriever: Retriever,
        maker: ListMaker,
        oracle: Oracle,
        items: Mapping[str, QAItem],
        labels: LabelFile,
        *,
        k: int,
        form: ResultForm,
    ) -> None:
        self._retriever = retriever
        self._maker = maker
        self._oracle = oracle
        self._items = items
        self._labels = labels
        self._k = k
        self._form = form

    @property
    def tool(self) -> Tool:
        """The tool `search(query)`."""
        return Tool(self._search, "search")

    async def _search(
        self,
        query: Annotated[str, Field(description="What to search for, in a few words or a sentence.")],
        context: CallContext,
    ) -> ToolOutput:
        """Searches the corpus and gives the documents that fit best, each with the beginning of its text."""
        subquery = SubQuery(
            qid=context.qid,
            turn=context.turn,
            call=context.place,
            question=context.question,
            reasoning=context.reasoning,
            query=query,
        )
        if subquery in self._labels:
            ranking: Ranking | None = next(self._labels.read([subquery])).ranking
        else:
            ranking = await self._rank(subquery)
        if ranking is None:
            return shown_results(query, _response([], self._retriever.index_version), self._form)
        return await asyncio.to_thread(self._shown, query, ranking)

    async def _rank(self, subquery: SubQuery) -> Ranking | None:
        """The oracle's ranking; None where nothing was found and the question has no gold documents."""
        try:
            task = await asyncio.to_thread(self._maker.make, subquery, self._items[subquery.qid])
        except QueryTooLongError as error:
            raise RequestError("query", str(error).removeprefix("query: ")) from None
        if not task.pool.candidates:
            return None
        outcome = await self._oracle.rank(task, self._labels.journals.open(label_key(subquery)))
        self._labels.append(outcome)
        return outcome.ranking

    def _shown(self, query: str, ranking: Ranking) -> ToolOutput:
        """The k best of a ranking; what was not ranked follows in the retriever's order."""
        scores = {candidate.docid: candidate.score for candidate in ranking.candidates}
        rest = [candidate for candidate in ranking.candidates if candidate.score is not None]
        rest.sort(key=lambda candidate: (-(candidate.score or 0.0), candidate.docid))
        order = dict.fromkeys((*ranking.order[: ranking.ranked_count], *(candidate.docid for candidate in rest)))
        results = [self._retriever.result(docid, scores[docid] or 0.0) for docid in list(order)[: self._k]]
        return shown_results(query, _response(results, self._retriever.index_version), self._form)


def _response(results: list[SearchResult], index_version: str) -> SearchResponse:
    return SearchResponse(
        results=tuple(results),
        index_version=index_version,
        reasoning_used=False,
        reasoning_truncated=False,
        reasoning="",
    )
