"""How many searches run at once, and what becomes of those that nobody waits for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import Message

from agentir.errors import EncoderError
from agentir.search.index import Index
from agentir.search.request import SearchRequest
from agentir.search.retriever import Retriever, SearchResponse
from agentir.server.app import build_app
from agentir.server.service import SearchService


class HeldRetriever(Retriever):
    """Its searches begin, and then wait until they are let go."""

    def __init__(self, index: Path) -> None:
        super().__init__(Index.open(index), None)
        self.begun: list[str] = []
        self.go = threading.Event()

    def answer(self, request: SearchRequest) -> SearchResponse:
        self.begun.append(request.query)
        assert self.go.wait(10)
        if request.query == "broken encoder":
            raise EncoderError("tiny: the model gave vectors that are not finite")
        if request.query == "bug":
            raise RuntimeError("secret detail")
        return super().answer(request)


@pytest.fixture
def held(index: Path) -> Iterator[HeldRetriever]:
    retriever = HeldRetriever(index)
    yield retriever
    retriever.go.set()


def client_of(service: SearchService) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def until(held: HeldRetriever, num_begun: int) -> None:
    while len(held.begun) < num_begun:
        await anyio.sleep(0.005)


def test_some_search_others_wait_and_the_rest_are_told_to_come_back(held: HeldRetriever) -> None:
    answers: list[httpx.Response] = []

    async def run() -> None:
        service = SearchService(held, max_concurrent=2, max_waiting=3)
        async with client_of(service) as client:

            async def ask(number: int) -> None:
                answers.append(await client.post("/v1/search", json={"query": f"number{number}"}))

            async with anyio.create_task_group() as group:
                for number in range(5):
                    group.start_soon(ask, number)
                await until(held, 2)
                await anyio.sleep(0.05)
                assert len(held.begun) == 2
                refused = await client.post("/v1/search", json={"query": "one too many"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["error"]["code"] == "busy"
                assert (await client.get("/v1/documents/7")).status_code == 200
                held.go.set()
            after = await client.post("/v1/search", json={"query": "seven"})
            assert after.status_code == 200

    anyio.run(run)
    assert sorted(answer.json()["results"][0]["docid"] for answer in answers) == ["n0", "n1", "n2", "n3", "n4"]


def test_a_search_whose_client_left_while_it_waited_is_never_run(held: HeldRetriever) -> None:
    async def run() -> None:
        service = SearchService(held, max_concurrent=1, max_waiting=1)
        app = build_app(service)

        async def ask(query: str, gone: anyio.Event) -> None:
            body = [json.dumps({"query": query}).encode()]

            async def receive() -> Message:
                if body:
                    return {"type": "http.request", "body": body.pop(), "more_body": False}
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(_: Message) -> None:
                pass

            headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
            scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/search", "headers": headers}
            await app({**scope, "raw_path": b"/v1/search", "query_string": b"", "root_path": ""}, receive, send)

        stays, leaves = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "first", stays)
            await until(held, 1)
            group.start_soon(ask, "left", leaves)
            await anyio.sleep(0.05)
            leaves.set()
            await anyio.sleep(0.05)
            group.start_soon(ask, "third", stays)  # takes the place that became free
            await anyio.sleep(0.05)
            held.go.set()

    anyio.run(run)
    assert held.begun == ["first", "third"]


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("broken encoder", "failed", "tiny: the model gave vectors that are not finite"),
        ("bug", "internal", "the server failed on this request; its log says why"),
    ],
)
def test_a_failure_inside_is_an_error_object_without_internals(
    query: str, code: str, message: str, held: HeldRetriever
) -> None:
    held.go.set()

    async def run() -> httpx.Response:
        async with client_of(SearchService(held)) as client:
            return await client.post("/v1/search", json={"query": query})

    answer = anyio.run(run)
    expected = {"error": {"code": code, "field": None, "message": message}}
    assert (answer.status_code, answer.json()) == (500, expected)
