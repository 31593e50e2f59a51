"""What the server does, whatever the protocol: arguments in, JSON objects out, a bounded number of searches at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import anyio
from anyio import to_thread

from agentir.errors import AgentirError, RequestError
from agentir.search.request import Limits, parse_docid, parse_search
from agentir.search.retriever import Retriever


class BusyError(AgentirError):
    """More searches wait than the server lets in."""

    retry_after = 1
    """Seconds after which to ask again."""


class SearchService:
    """Runs searches in worker threads.

    Args:
        retriever: what searches.
        max_concurrent: how many searches run at once; further ones wait.
        max_waiting: how many may wait; further ones are refused.
    """

    def __init__(self, retriever: Retriever, *, max_concurrent: int = 4, max_waiting: int = 64) -> None:
        self._retriever = retriever
        self._room = max_concurrent + max_waiting
        self._num_pending = 0
        self._limiter = anyio.CapacityLimiter(max_concurrent)

    @property
    def limits(self) -> Limits:
        """The bounds of requests."""
        return self._retriever.limits

    @property
    def reads_reasoning(self) -> bool:
        """Whether reasoning takes part in a search."""
        return self._retriever.reads_reasoning

    def health(self) -> dict[str, Any]:
        """Says that the server is up, and with which index."""
        return {"status": "ok", "index_version": self._retriever.index_version}

    async def search(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """The fields of `SearchResponse`.

        A caller that is cancelled while it waits for its turn costs no search.

        Raises:
            RequestError: an argument does not fit.
            BusyError: too many searches wait already.
        """
        request = parse_search(arguments, self.limits)
        if self._num_pending >= self._room:
            raise BusyError(
                f"{self._num_pending} searches are running or waiting; ask again in {BusyError.retry_after} s"
            )
        self._num_pending += 1
        try:
            return asdict(await to_thread.run_sync(self._retriever.answer, request, limiter=self._limiter))
        finally:
            self._num_pending -= 1

    async def get_document(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """The fields of `Document`.

        Raises:
            RequestError: the argument does not fit, or (code `not_found`) there is no such document.
        """
        docid = parse_docid(arguments)
        document = await to_thread.run_sync(self._retriever.get_document, docid)
        if document is None:
            shown = docid if len(docid) <= 200 else docid[:200] + "…"
            raise RequestError(
                "docid", f"no document {shown!r} in this index; expected the docid of a search result", "not_found"
            )
        return asdict(document)


def error_body(code: str, message: str, field: str | None = None) -> dict[str, Any]:
    """An error as every protocol gives it; `field` names the argument at fault, if one is."""
    return {"error": {"code": code, "field": field, "message": message}}


def describe_error(error: AgentirError) -> dict[str, Any]:
    """The error object of what the service raises."""
    if isinstance(error, RequestError):
        return error_body(error.code, str(error), error.field)
    return error_body("busy" if isinstance(error, BusyError) else "failed", str(error))
