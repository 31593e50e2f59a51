"""MCP with the SDK's own client, over streamable HTTP and over standard input and output, against the real process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client, StdioServerParameters
from served import DOCUMENTS, ROOT, Server, case, serve_command

from agentir.errors import RequestError
from agentir.search.request import Limits, parse_search
from agentir.search.retriever import Retriever
from agentir.server.mcp_tools import document_tool, search_tool

GOLDEN = Path(__file__).parent / "tools.json"
Session = Callable[[Client], Awaitable[None]]


def over_http(server: Server, session: Session, mode: str = "auto") -> None:
    async def run() -> None:
        with anyio.fail_after(30):
            async with Client(f"{server.url}/mcp", mode=mode) as client:
                await session(client)

    anyio.run(run)


def text_of(result: Any) -> Any:
    [content] = result.content
    return json.loads(content.text)


async def tools_work(client: Client) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools.tools] == ["search", "get_document"]
    found = await client.call_tool("search", {"query": "unicode"})
    assert not found.is_error
    [result] = found.structured_content["results"]
    assert (result["docid"], result["snippet"]) == ("ünï—✓", "unicode café — ✓")
    assert text_of(found)["results"][0] == {**result, "score": round(result["score"], 4)}
    read = await client.call_tool("get_document", {"docid": result["docid"]})
    assert read.structured_content == text_of(read) == {"metadata": {}, **DOCUMENTS[5]}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_over_http_for_old_and_new_clients(mode: str, server: Server) -> None:
    over_http(server, tools_work, mode)


async def bad_calls_are_told(client: Client) -> None:
    for arguments in [*case("V01"), *case("V02"), {"query": "x", "reasonning": "lost"}]:
        result = await client.call_tool("search", arguments)
        try:
            parse_search(arguments)
        except RequestError as error:
            expected = {"code": "invalid_argument", "field": error.field, "message": str(error)}
            assert result.is_error
            assert text_of(result) == {"error": expected}
            assert result.structured_content is None
        else:
            assert not result.is_error
    for name, bad, field, code in (
        ("get_document", {"docid": "missing"}, "docid", "not_found"),
        ("get_document", {"docid": 7}, "docid", "invalid_argument"),
        ("get_document", {}, "docid", "invalid_argument"),
        ("get_document", {"docid": "7", "k": 1}, "k", "invalid_argument"),
        ("serach", {"query": "x"}, "name", "unknown_tool"),
    ):
        result = await client.call_tool(name, bad)
        assert result.is_error
        assert [text_of(result)["error"][key] for key in ("field", "code")] == [field, code]
    assert not (await client.call_tool("search", {"query": "seven"})).is_error


def test_bad_calls_get_the_same_error_as_in_python_over_http(server: Server) -> None:
    over_http(server, bad_calls_are_told)


def test_the_printed_configuration_starts_a_stdio_server_that_does_the_same(server: Server) -> None:
    by_url, by_command = re.findall(r"^\{.*?^\}", server.announced, re.MULTILINE | re.DOTALL)
    assert json.loads(by_url) == {"mcpServers": {"agentir": {"url": f"{server.url}/mcp"}}}
    entry = json.loads(by_command)["mcpServers"]["agentir"]
    locale = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}

    async def run() -> None:
        with anyio.fail_after(30):
            parameters = StdioServerParameters(**entry, cwd=ROOT, env={**os.environ, **locale})
            async with Client(parameters) as client:
                await tools_work(client)
                await bad_calls_are_told(client)

    anyio.run(run)


def test_a_search_gives_what_python_gives(server: Server, index: Path) -> None:
    expected = Retriever.open(index).search("opera", k=3)

    async def session(client: Client) -> None:
        found = await client.call_tool("search", {"query": "opera", "reasoning": "Any will do.", "k": "3"})
        results = found.structured_content["results"]
        assert [(result["docid"], result["score"]) for result in results] == [
            (result.docid, pytest.approx(result.score)) for result in expected.results
        ]
        assert found.structured_content["index_version"] == expected.index_version
        assert found.structured_content["reasoning_used"] is False

    over_http(server, session)


def test_text_of_documents_stays_data(server: Server) -> None:
    async def session(client: Client) -> None:
        [content] = (await client.call_tool("search", {"query": "instructions"})).content
        assert "\x1b" not in content.text
        assert json.loads(content.text)["results"][0]["snippet"] == DOCUMENTS[10]["text"]

    over_http(server, session)


def test_what_agents_are_told_is_what_was_agreed(server: Server) -> None:
    def dump(tool: Any) -> dict[str, Any]:
        dumped: dict[str, Any] = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped

    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert [dump(search_tool(Limits(), reads_reasoning=True)), dump(document_tool())] == golden

    async def session(client: Client) -> None:
        search, read = [dump(tool) for tool in (await client.list_tools()).tools]
        assert "always pass it" not in search["description"]
        assert search["inputSchema"]["properties"]["reasoning"]["description"].startswith("Accepted but not used")
        assert read == golden[1]

    over_http(server, session)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[" * 100_000, 400), (b"[]", 400), (b"\xff", 400), (b"x" * ((1 << 20) + 1), 413)],
    ids=lambda value: repr(value)[:20],
)
def test_bad_messages_over_http(body: bytes, status: int, server: Server) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    answer = httpx.post(f"{server.url}/mcp", content=body, headers=headers, trust_env=False)
    assert answer.status_code == status
    over_http(server, tools_work)


def test_stdout_holds_protocol_lines_only_and_bad_bytes_do_no_harm(index: Path) -> None:
    ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n'
    call = {"name": "search", "arguments": {"query": "unicode"}}
    search = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        b"\xff\xfe\n",
        ping % 1,
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": start}).encode() + b"\n",
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        json.dumps(search).encode() + b"\n",
    ]
    with subprocess.Popen(
        serve_command(index, "--transport", "stdio"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
        answers = {}
        while 2 not in answers:
            answer = json.loads(process.stdout.readline())
            answers[answer.get("id")] = answer
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.stdout.read() == b""
        log = process.stderr.read().decode()
    assert answers[1]["result"] == {}
    assert "café — ✓" in answers[2]["result"]["content"][0]["text"]
    assert '"mcpServers"' in log
    assert "Traceback" not in log
