"""REST, against the real server process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
from served import DOCUMENTS, Server, case

from agentir.errors import RequestError
from agentir.search.remote import RemoteRetriever
from agentir.search.request import parse_search
from agentir.search.retriever import Retriever


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def remote(server: Server) -> Iterator[RemoteRetriever]:
    with RemoteRetriever(server.url) as retriever:
        yield retriever


@pytest.fixture(scope="module")
def local(index: Path) -> Retriever:
    return Retriever.open(index)


@pytest.fixture(autouse=True)
def stays_up(server: Server, http: httpx.Client) -> Iterator[None]:
    yield
    assert server.process.poll() is None
    answer = http.post("/v1/search", json={"query": "seven"})
    assert [result["docid"] for result in answer.json()["results"]] == ["7"]
    assert "Traceback" not in server.stderr.read_text()


def test_health(http: httpx.Client, local: Retriever) -> None:
    assert http.get("/healthz").json() == {"status": "ok", "index_version": local.index_version}


def test_a_search_gives_what_python_gives(http: httpx.Client, remote: RemoteRetriever, local: Retriever) -> None:
    expected = local.search("opera", reasoning="Any will do.", k=3)
    assert len(expected.results) == 3
    assert not expected.reasoning_used
    assert remote.search("opera", reasoning="Any will do.", k=3) == expected
    answer = http.post("/v1/search", json={"query": "opera", "reasoning": "Any will do.", "k": 3}).json()
    assert set(answer) == {"results", "index_version", "reasoning_used", "reasoning_truncated", "reasoning"}
    assert [result["docid"] for result in answer["results"]] == [result.docid for result in expected.results]
    assert http.post("/v1/search", json={"query": "no such word"}).json()["results"] == []


def test_texts_arrive_unchanged(http: httpx.Client) -> None:
    [result] = http.post("/v1/search", json={"query": "unicode"}).json()["results"]
    score = result.pop("score")
    assert score > 0
    assert result == {
        "docid": "ünï—✓",
        "title": "Café",
        "snippet": "unicode café — ✓",
        "url": "https://example.org/caf%C3%A9",
    }


@pytest.mark.parametrize("arguments", [*case("V01"), *case("V02"), {"query": "x", "reasonning": "lost"}])
def test_bad_arguments_get_the_same_error_as_in_python(
    arguments: dict[str, object], http: httpx.Client, remote: RemoteRetriever
) -> None:
    answer = http.post("/v1/search", json=arguments)
    try:
        request = parse_search(arguments)
    except RequestError as error:
        expected = {"code": "invalid_argument", "field": error.field, "message": str(error)}
        assert (answer.status_code, answer.json()) == (400, {"error": expected})
        if set(arguments) <= {"query", "k"} and "query" in arguments:
            with pytest.raises(RequestError) as caught:
                remote.search(**arguments)  # type: ignore[arg-type]
            assert (str(caught.value), caught.value.field, caught.value.code) == (str(error), error.field, error.code)
    else:
        assert request.k == 5
        assert answer.status_code == 200
        assert remote.search(**arguments).results == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("document", DOCUMENTS[:11], ids=lambda document: repr(document["docid"]))
def test_a_docid_is_a_key_and_never_a_path(
    document: dict[str, str], http: httpx.Client, remote: RemoteRetriever, local: Retriever
) -> None:
    expected = {"title": "", "url": "", "metadata": {}, **document}
    answer = http.get("/v1/documents/" + quote(document["docid"], safe="").replace(".", "%2E"))
    assert answer.json() == expected
    found = remote.get_document(document["docid"])
    assert found is not None
    assert found == local.get_document(document["docid"])
    assert found.docid == document["docid"]


@pytest.mark.parametrize(
    "docid", ["missing", "07", "../../etc/passwd", "/etc/passwd", "7\x00", "x" * 10_000, "a%2Fb c"]
)
def test_a_docid_that_is_not_there_is_404(docid: str, http: httpx.Client, remote: RemoteRetriever) -> None:
    answer = http.get("/v1/documents/" + quote(docid, safe=""))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (404, "not_found", "docid")
    assert len(error["message"]) < 500
    assert remote.get_document(docid) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "docid: empty"),
        ("%FF", "docid: expected percent-encoded UTF-8"),
        ("100%2525?x", "docid: expected it percent-encoded, found a ?"),
    ],
)
def test_what_is_no_docid_is_400(path: str, message: str, http: httpx.Client) -> None:
    answer = http.get("/v1/documents/" + path)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"", "application/json", 400, "invalid_json"),
        (b"{", "application/json", 400, "invalid_json"),
        (b"[" * 100_000, "application/json", 400, "invalid_json"),
        (b'{"query": ' + b"[" * 900 + b"]" * 900 + b"}", "application/json", 400, "invalid_argument"),
        (b'{"query": "x", "k": ' + b"9" * 5000 + b"}", "application/json", 400, "invalid_json"),
        (b'{"query": "x", "k": NaN}', "application/json", 400, "invalid_argument"),
        (b'{"query": "x", "\\ud800": 1}', "application/json", 400, "invalid_argument"),
        (b"[]", "application/json", 400, "invalid_json"),
        (b'"x"', "application/json", 400, "invalid_json"),
        (b'{"query": "\xff"}', "application/json", 400, "invalid_json"),
        (b'{"query": "x"}', "text/plain", 415, "unsupported_media_type"),
        (b'{"query": "x"}', "", 415, "unsupported_media_type"),
        (b'{"query": "' + b"x" * (1 << 20) + b'"}', "application/json", 413, "too_large"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_bodies(body: bytes, content_type: str, status: int, code: str, http: httpx.Client) -> None:
    answer = http.post("/v1/search", content=body, headers={"content-type": content_type} if content_type else {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_content_type_may_name_its_charset_and_surrogates_are_replaced(http: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = http.post("/v1/search", content=b'{"query": "seven \\ud800 \\u0000"}', headers=headers)
    assert [result["docid"] for result in answer.json()["results"]] == ["7"]


def test_arguments_in_the_url_are_not_lost_in_silence(http: httpx.Client) -> None:
    answer = http.post("/v1/search?k=3", json={"query": "opera"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "body: expected the arguments in the JSON body, found some in the URL"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/search", 405, "method_not_allowed"),
        ("DELETE", "/v1/documents/7", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/search", 405, "method_not_allowed"),
        ("GET", "/mcp", 405, "method_not_allowed"),
        ("POST", "/v1/search/", 404, "not_found"),
    ],
)
def test_routes_and_methods(method: str, path: str, status: int, code: str, http: httpx.Client) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/healthz", "/v1/search", "/v1/documents/7", "/mcp", "/elsewhere"])
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.example"}, 421, "wrong_host"),
        ({"host": "127.0.0.1.evil.example:80"}, 421, "wrong_host"),
        ({"host": ""}, 421, "wrong_host"),
        ({"origin": "https://evil.example"}, 403, "wrong_origin"),
        ({"origin": "http://localhost.evil.example"}, 403, "wrong_origin"),
        ({"origin": "null"}, 403, "wrong_origin"),
    ],
)
def test_other_hosts_and_origins_are_refused_everywhere(
    path: str, headers: dict[str, str], status: int, code: str, http: httpx.Client
) -> None:
    answer = http.post(path, json={"query": "seven"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "headers", [{"host": "localhost:1"}, {"host": "[::1]:80"}, {"origin": "http://localhost:3000"}]
)
def test_names_of_this_machine_are_let_in(headers: dict[str, str], http: httpx.Client) -> None:
    assert http.get("/healthz", headers=headers).status_code == 200


def test_many_clients_at_once_each_get_their_own_answer(server: Server) -> None:
    def ask(number: int) -> list[str]:
        with RemoteRetriever(server.url) as remote:
            return [remote.search(f"number{number}").results[0].docid for _ in range(5)]

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(32))) == [[f"n{number}"] * 5 for number in range(32)]


def test_small_answers_are_sent_at_once(http: httpx.Client) -> None:
    # a listener without TCP_NODELAY answers no request in less than 40 ms
    assert min(http.get("/healthz").elapsed.total_seconds() for _ in range(20)) < 0.03


def test_clients_that_go_away_do_no_harm(server: Server) -> None:
    address = urlsplit(server.url)
    body = json.dumps({"query": "opera", "k": 100}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n".encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    for part in (b"", head, head + length + body[:5], head + length + body):
        for _ in range(5):
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(part)
