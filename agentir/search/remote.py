"""A retriever on a server of `agentir index serve`: the same methods, results and errors as `agentir.search.retriever`."""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType
from typing import Self
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from agentir.errors import AgentirError, MissingExtraError, RequestError
from agentir.records import Document
from agentir.search.request import parse_docid
from agentir.search.retriever import SearchResponse

try:
    import httpx
except ModuleNotFoundError:
    raise MissingExtraError("httpx", "serve") from None

_RESPONSE = TypeAdapter(SearchResponse)
_DOCUMENT = TypeAdapter(Document)
_BUSY_RETRIES = 5


class RemoteError(AgentirError):
    """The server is away, too slow, too busy, or answered with something other than agentir's REST."""


class RemoteRetriever:
    """Searches through a server's REST interface; use as a (sync or async) context manager, or close it.

    A busy server is asked again after the time it names, a few times.

    Args:
        url: where the server listens, such as `http://127.0.0.1:8321`.
        timeout: seconds to wait for one answer.

    Raises:
        RemoteError: that is no URL.
    """

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        self.url = url.rstrip("/")
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise RemoteError(f"{url}: expected a URL such as http://127.0.0.1:8321 ({error})") from None
        # proxies of the environment are for the outer world; agentir serves on this machine only
        self._client = httpx.Client(timeout=timeout, trust_env=False)
        self._async_client = httpx.AsyncClient(timeout=timeout, trust_env=False)

    def search(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        """See `agentir.search.retriever.Retriever.search`.

        Raises:
            RequestError: an argument does not fit.
            RemoteError: the server gave no answer.
        """
        return self._response(self._send(self._search_request(query, reasoning, k)))

    async def asearch(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        """`search` without blocking the event loop."""
        return self._response(await self._asend(self._search_request(query, reasoning, k)))

    def get_document(self, docid: str) -> Document | None:
        """See `agentir.search.retriever.Retriever.get_document`.

        Raises:
            RequestError: the docid is no string or empty.
            RemoteError: the server gave no answer.
        """
        return self._document(self._send(self._document_request(docid)))

    async def aget_document(self, docid: str) -> Document | None:
        """`get_document` without blocking the event loop."""
        return self._document(await self._asend(self._document_request(docid)))

    def close(self) -> None:
        """Closes the connections of the sync methods."""
        self._client.close()

    async def aclose(self) -> None:
        """Closes the connections of all methods."""
        self._client.close()
        await self._async_client.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _search_request(self, query: str, reasoning: str, k: int | None) -> httpx.Request:
        try:
            body = json.dumps({"query": query, "reasoning": reasoning, "k": k})
        except (TypeError, ValueError) as error:
            raise RequestError("arguments", f"expected JSON values: {error}") from None
        return httpx.Request(
            "POST", f"{self.url}/v1/search", content=body, headers={"content-type": "application/json"}
        )

    def _document_request(self, docid: str) -> httpx.Request:
        # dots are encoded too, so that a docid of dots is not taken for a relative path
        key = quote(parse_docid({"docid": docid}), safe="").replace(".", "%2E")
        try:
            return httpx.Request("GET", f"{self.url}/v1/documents/{key}")
        except httpx.InvalidURL:
            raise RequestError("docid", "too long; expected the docid of a search result") from None

    def _send(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(_BUSY_RETRIES + 1):
            try:
                answer = self._client.send(request)
            except httpx.HTTPError as error:
                raise self._away(error) from error
            if answer.status_code != 503 or attempt == _BUSY_RETRIES:
                break
            time.sleep(_pause(answer))
        return answer

    async def _asend(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(_BUSY_RETRIES + 1):
            try:
                answer = await self._async_client.send(request)
            except httpx.HTTPError as error:
                raise self._away(error) from error
            if answer.status_code != 503 or attempt == _BUSY_RETRIES:
                break
            await asyncio.sleep(_pause(answer))
        return answer

    def _away(self, error: httpx.HTTPError) -> RemoteError:
        if isinstance(error, httpx.TimeoutException):
            return RemoteError(f"{self.url}: no answer within the timeout; is the server overloaded?")
        return RemoteError(f"{self.url}: no agentir server answers ({error}); start it with: agentir index serve")

    def _response(self, answer: httpx.Response) -> SearchResponse:
        if answer.status_code != 200:
            raise self._error(answer)
        try:
            return _RESPONSE.validate_json(answer.content)
        except ValidationError as error:
            raise RemoteError(f"{self.url}: expected a search response: {error}") from None

    def _document(self, answer: httpx.Response) -> Document | None:
        if answer.status_code != 200:
            fault = self._error(answer)
            if isinstance(fault, RequestError) and fault.code == "not_found":
                return None
            raise fault
        try:
            return _DOCUMENT.validate_json(answer.content)
        except ValidationError as error:
            raise RemoteError(f"{self.url}: expected a document: {error}") from None

    def _error(self, answer: httpx.Response) -> AgentirError:
        """What the server refused, or what is wrong with its answer."""
        try:
            fault = answer.json()["error"]
            code, field, message = str(fault["code"]), fault["field"], str(fault["message"])
        except (ValueError, KeyError, TypeError):
            return RemoteError(f"{self.url}: status {answer.status_code} without an error; is this an agentir server?")
        if 400 <= answer.status_code < 500 and isinstance(field, str):
            return RequestError(field, message.removeprefix(f"{field}: "), code)
        return RemoteError(f"{self.url}: {message}")


def _pause(answer: httpx.Response) -> float:
    """Seconds a busy server asks to be left alone, at most 10."""
    wait = answer.headers.get("retry-after", "1")
    return min(float(wait), 10.0) if wait.isascii() and wait.isdigit() else 1.0
