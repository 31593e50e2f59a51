"""Retrievers in this process and on a server, without the server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import anyio
import pytest
from hashed_encoder import HashedEncoder

from agentir.embed.encoder import EncodedQueries, QueryTooLongError
from agentir.errors import ArtifactError, EncoderError, MissingExtraError, RequestError
from agentir.records import Document, SearchQuery
from agentir.search.builder import build_index
from agentir.search.index import Index
from agentir.search.remote import RemoteError, RemoteRetriever
from agentir.search.request import Limits
from agentir.search.retriever import Retriever, snippet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retriever")
    documents = [
        {"docid": "1", "text": "opera opera", "title": "One", "url": "https://example.org/1", "year": 2020},
        {"docid": "2", "text": "opera harbour " + "more " * 300},
        {"docid": "3", "text": ""},
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    build_index(folder / "index", folder / "corpus.jsonl")
    return folder / "index"


def test_open_search_and_read(index: Path) -> None:
    retriever = Retriever.open(index, snippet_words=4)
    response = retriever.search("opera", reasoning="Not read by BM25.", k=5)
    assert [result.docid for result in response.results] == ["1", "2"]
    assert response.results[0].score > response.results[1].score
    assert (response.results[0].title, response.results[0].url) == ("One", "https://example.org/1")
    assert [result.snippet for result in response.results] == ["opera opera", "opera harbour more more …"]
    assert (response.reasoning_used, response.reasoning_truncated, response.reasoning) == (False, False, "")
    assert response.index_version == retriever.index_version
    document = retriever.get_document("1")
    assert document == Document(
        docid="1", text="opera opera", title="One", url="https://example.org/1", metadata={"year": 2020}
    )
    assert retriever.get_document("4") is None
    assert anyio.run(retriever.asearch, "opera", "", 5) == retriever.search("opera", k=5)
    assert anyio.run(retriever.aget_document, "1") == document


def test_bad_arguments_are_refused(index: Path) -> None:
    retriever = Retriever.open(index, limits=Limits(max_k=3))
    with pytest.raises(RequestError, match=r"^query: blank"):
        retriever.search(" ")
    with pytest.raises(RequestError, match=r"^k: expected a whole number from 1 to 3, found 4"):
        retriever.search("opera", k=4)
    assert len(retriever.search("opera").results) == 2
    with pytest.raises(RequestError, match=r"^docid: expected a string"):
        retriever.get_document(1)  # type: ignore[arg-type]


def test_an_index_without_vectors_is_not_searched_by_vectors(index: Path) -> None:
    with pytest.raises(ArtifactError, match="no vectors"):
        Retriever.open(index, searcher="dense")
    with pytest.warns(UserWarning, match="searched with BM25, which ignores encoder"):
        Retriever.open(index, "some/model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Retriever.open(index, searcher="bm25").close()


class WordLimited(HashedEncoder):
    """Reads the newest of the words that fit; notes what it was asked."""

    def __init__(self, max_words: int) -> None:
        super().__init__()
        self.max_words = max_words
        self.asked: list[SearchQuery] = []

    def encode_queries(self, queries: Sequence[SearchQuery]) -> EncodedQueries:
        self.asked += queries
        if any(len(query.query.split()) > self.max_words for query in queries):
            raise QueryTooLongError(f"query: expected at most {self.max_words} words")
        if any(query.query == "broken" for query in queries):
            raise EncoderError("the encoder is broken")
        texts = [f"{query.reasoning} {query.query}".split() for query in queries]
        kept = [SearchQuery(query=" ".join(words[-self.max_words :])) for words in texts]
        vectors = super().encode_queries(kept).vectors
        return EncodedQueries(vectors=vectors, shortened=tuple(len(words) > self.max_words for words in texts))


@pytest.fixture(scope="module")
def dense_index(index: Path) -> Iterator[Index]:
    build_index(index.parent / "dense", index.parent / "corpus.jsonl", encoder=HashedEncoder())
    with Index.open(index.parent / "dense") as opened:
        yield opened


def test_any_encoder_may_be_plugged_in_and_is_asked_once_a_search(dense_index: Index) -> None:
    encoder = WordLimited(4)
    retriever = Retriever(dense_index, encoder)
    response = retriever.search("opera", reasoning="one two three four", k=1)
    assert (response.reasoning_used, response.reasoning_truncated) == (True, True)
    assert encoder.asked == [SearchQuery(query="opera", reasoning="one two three four")]
    assert not retriever.search("opera", reasoning="one two").reasoning_truncated
    with pytest.raises(RequestError, match=r"^query: expected at most 4 words"):
        retriever.search("opera " * 5)
    with pytest.raises(EncoderError, match="the encoder is broken"):
        retriever.search("broken")


@pytest.mark.parametrize(
    ("slot", "read"),
    [
        ("question", "the question"),
        ("prior_queries", "the episode's earlier searches"),
        ("prior_reasonings", "the episode's earlier searches"),
        ("history", "the episode's earlier searches"),
    ],
)
def test_an_encoder_that_reads_what_a_search_does_not_carry_is_refused(
    dense_index: Index, slot: str, read: str
) -> None:
    encoder = HashedEncoder()
    encoder.context_slot = slot  # type: ignore[assignment]
    with pytest.raises(EncoderError, match=f"hashed: reads {read} beside the query, and a search carries"):
        Retriever(dense_index, encoder)


def test_what_a_retriever_over_http_needs_is_named() -> None:
    code = "import sys; sys.modules['httpx'] = None; import agentir.search.remote"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert f"MissingExtraError: {MissingExtraError('httpx', 'serve')}" in ended.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        (" \n ", ""),
        ("one two three", "one two three"),
        (" one\n two three \n", "one\n two three"),
        ("one two three four", "one two three …"),
        ("x" * 30, "x" * 30),
        ("x" * 31, "x" * 30 + " …"),
        ("東" * 40, "東" * 30 + " …"),
    ],
)
def test_a_snippet_is_the_beginning_marked_where_it_is_cut(text: str, shown: str) -> None:
    assert snippet(text, 3) == shown


class Answers(BaseHTTPRequestHandler):
    """Gives the prepared answers one after the other."""

    prepared: list[tuple[int, dict[str, str], bytes]] = []

    def do_GET(self) -> None:
        status, headers, body = self.prepared.pop(0)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


DOCUMENT = b'{"docid": "7", "text": "seven", "title": "", "url": "", "metadata": {}}'
BUSY = (503, {"Retry-After": "0"}, b'{"error": {"code": "busy", "field": null, "message": "68 searches are waiting"}}')


def test_a_busy_server_is_asked_again(other_server: str) -> None:
    Answers.prepared = [BUSY, BUSY, (200, {}, DOCUMENT)]
    with RemoteRetriever(other_server) as remote:
        assert remote.get_document("7") == Document(docid="7", text="seven")
        Answers.prepared = [BUSY] * 6
        with pytest.raises(RemoteError, match="68 searches are waiting"):
            remote.get_document("7")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b'{"docid": "7"}'),
        (404, b"no such page"),
        (404, b'{"detail": "Not Found"}'),
        (404, b'{"error": {"code": "not_found", "field": null, "message": "Not Found"}}'),
        (500, b'{"error": "broken"}'),
    ],
)
def test_another_server_is_not_taken_for_agentir(status: int, body: bytes, other_server: str) -> None:
    Answers.prepared = [(status, {}, body)]
    with RemoteRetriever(other_server) as remote, pytest.raises(RemoteError, match=other_server):
        remote.get_document("7")


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def ask() -> None:
            async with RemoteRetriever(url, timeout=0.1) as remote:
                await remote.asearch("x")

        with (
            RemoteRetriever(url, timeout=0.1) as remote,
            pytest.raises(RemoteError, match="no answer within the timeout"),
        ):
            remote.search("x")
        with pytest.raises(RemoteError, match="no answer within the timeout"):
            anyio.run(ask)
    with pytest.raises(RemoteError, match=f"{url}: no agentir server answers.*agentir index serve"):
        anyio.run(ask)


@pytest.mark.parametrize("url", ["localhost", "ftp://localhost", "http://localhost:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RemoteError), RemoteRetriever(url) as remote:
        remote.search("x")
