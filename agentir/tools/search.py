"""The tools search and visit over a retriever, in this process or on a server."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Literal, Protocol

from pydantic import Field

from agentir.errors import RequestError
from agentir.records import Document
from agentir.search.retriever import SearchResponse
from agentir.tools.tool import CallContext, Tool, ToolError, ToolOutput

ResultForm = Literal["text", "json"]
"""How results are shown: as Tongyi-DeepResearch reads them, or as gpt-oss and GLM do in AgentIR."""
SNIPPET_WORDS = 380
"""About the 512 tokens a result that BrowseComp-Plus and AgentIR show."""
VISIT_CHARS = 25_000
"""What AgentIR's visit shows of a document."""


class AsyncRetriever(Protocol):
    """What the tools search with: `agentir.search.retriever.Retriever` or `agentir.search.remote.RemoteRetriever`."""

    async def asearch(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        """The k best documents."""
        ...

    async def aget_document(self, docid: str) -> Document | None:
        """A whole document."""
        ...


class SearchTools:
    """Makes the tools of a retriever.

    Args:
        retriever: what is searched.
        k: results a query.
        form: how they are shown.
        pass_reasoning: give the reasoning of the calling turn to the retriever; the model never sees that.
        visit_chars: how much of a document a visit shows.
    """

    def __init__(
        self,
        retriever: AsyncRetriever,
        *,
        k: int = 5,
        form: ResultForm = "text",
        pass_reasoning: bool = False,
        visit_chars: int = VISIT_CHARS,
    ) -> None:
        self._retriever = retriever
        self._k = k
        self._form = form
        self._pass_reasoning = pass_reasoning
        self._visit_chars = visit_chars

    @property
    def search(self) -> Tool:
        """The tool `search(query)`, one query a call."""
        return Tool(self._search, "search")

    @property
    def search_several(self) -> Tool:
        """The tool `search(query)` with a list of queries a call."""
        return Tool(self._search_several, "search")

    @property
    def visit(self) -> Tool:
        """The tool `visit(docid)`."""
        return Tool(self._visit, "visit")

    async def _search(
        self,
        query: Annotated[str, Field(description="What to search for, in a few words or a sentence.")],
        context: CallContext,
    ) -> ToolOutput:
        """Searches the corpus and gives the documents that fit best, each with the beginning of its text."""
        response = await self._retriever.asearch(query, context.reasoning if self._pass_reasoning else "", self._k)
        return shown_results(query, response, self._form)

    async def _search_several(
        self,
        query: Annotated[list[str], Field(description="Queries that are searched for one by one.", min_length=1)],
        context: CallContext,
    ) -> ToolOutput:
        """Searches the corpus for each query and gives the documents that fit it best, each with the beginning of its text."""
        outputs = await asyncio.gather(*(self._search(one, context) for one in query))
        return ToolOutput(
            content="\n=======\n".join(output.content for output in outputs),
            docids=tuple(dict.fromkeys(docid for output in outputs for docid in output.docids)),
            compact="\n".join(output.compact for output in outputs),
        )

    async def _visit(
        self, docid: Annotated[str, Field(description="The id of a document, exactly as a search gave it.")]
    ) -> ToolOutput:
        """Shows the whole text of a document that a search found."""
        try:
            document = await self._retriever.aget_document(docid)
        except RequestError as error:
            raise ToolError(str(error)) from None
        if document is None:
            raise ToolError(f"there is no document {docid[:200]!r}; give an id exactly as a search result has it")
        text = document.text[: self._visit_chars]
        if len(document.text) > len(text):
            text += f"\n[... cut: {len(text)} of {len(document.text)} characters]"
        head = f"{document.title}\n\n" if document.title else ""
        return ToolOutput(content=head + text, docids=(docid,), compact=f"[read {docid}]")


def shown_results(query: str, response: SearchResponse, form: ResultForm) -> ToolOutput:
    """What an agent reads of a search's results."""
    docids = tuple(result.docid for result in response.results)
    content = _as_json(response) if form == "json" else _as_text(query, response)
    return ToolOutput(content=content, docids=docids, compact=f"[results of {query!r}: {', '.join(docids)}]")


def _as_text(query: str, response: SearchResponse) -> str:
    """Numbered results with title, docid and snippet."""
    if not response.results:
        return f"A search for {query!r} found nothing. Try other or fewer words."
    items = [
        f"{number}. {result.title or _first_words(result.snippet)} (docid: {result.docid})\n{result.snippet}"
        for number, result in enumerate(response.results, start=1)
    ]
    return f"A search for {query!r} found {len(items)} results:\n\n" + "\n\n".join(items)


def _first_words(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 50 else line[:50] + "..."


def _as_json(response: SearchResponse) -> str:
    """The list of docid, title, score and snippet."""
    items = [
        {"docid": result.docid, "title": result.title, "score": round(result.score, 4), "snippet": result.snippet}
        for result in response.results
    ]
    return json.dumps(items, ensure_ascii=False, indent=2)
