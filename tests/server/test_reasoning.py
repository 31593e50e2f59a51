"""Reasoning on its way to the encoder, over Python, REST and MCP; the encoder is real but tiny."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
from mcp import Client
from served import case
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from agentir.embed.encoder import Vectors
from agentir.embed.model import ModelEncoder
from agentir.embed.template import BODIES, QueryTemplate
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError
from agentir.search.builder import build_index
from agentir.search.index import Index
from agentir.search.request import Limits
from agentir.search.retriever import Retriever
from agentir.server.app import build_app
from agentir.server.mcp_tools import ECHO_CHARS, build_mcp_server
from agentir.server.service import SearchService

WORDS = ["x", "old", "new", "plan", "label", "find", "oslo", "bergen", "opera", "harbour"]
WORDS += ["Reasoning", "Query", "Empty", ":", "<unk>", "<pad>"]
TEXTS = {"old": "old old", "new": "new new", "plan": "plan", "x": "x x x", "label": "label", "opera": "oslo opera"}


class MeanOfWords:
    """The vector of a text is the mean of fixed vectors of its words."""

    def __init__(self, dim: int) -> None:
        self.table = np.random.default_rng(0).standard_normal((len(WORDS), dim)).astype(np.float32)
        self.num_inside = self.most_inside = 0

    def __call__(self, batches: Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> Iterator[Vectors]:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        for ids, mask in batches:
            time.sleep(0.001)
            sums = (self.table[ids] * mask[..., None]).sum(axis=1)
            yield sums / np.linalg.norm(sums, axis=1, keepdims=True)
        self.num_inside -= 1


def tiny_encoder(
    body: str = BODIES["reasoning+query"], dim: int = 32, forward: MeanOfWords | None = None
) -> ModelEncoder:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>")
    return ModelEncoder(
        name=f"tiny-{dim}",
        tokenization=Tokenization(tokenizer, QueryTemplate(body=body), 24, 64),
        forward=forward or MeanOfWords(dim),
        dim=dim,
        space=f"tiny-{dim}",
        encodes_documents=True,
        backend="torch",
    )


@pytest.fixture(scope="module")
def dense_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("dense")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"docid": docid, "text": text}) + "\n" for docid, text in TEXTS.items()))
    build_index(folder / "index", corpus, encoder=tiny_encoder())
    return Index.open(folder / "index")


@pytest.fixture(scope="module")
def retriever(dense_index: Index) -> Retriever:
    return Retriever(dense_index, tiny_encoder())


def by_rest(retriever: Retriever, arguments: dict[str, object]) -> dict[str, Any]:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(SearchService(retriever)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/search", json=arguments)

    answer: dict[str, Any] = anyio.run(run).json()
    return answer


def by_mcp(retriever: Retriever, arguments: dict[str, object]) -> dict[str, Any]:
    async def run() -> Any:
        async with Client(build_mcp_server(SearchService(retriever))) as client:
            return await client.call_tool("search", arguments)

    result = anyio.run(run)
    answer: dict[str, Any] = json.loads(result.content[0].text) if result.is_error else result.structured_content
    return answer


@pytest.mark.parametrize("ask", [by_rest, by_mcp])
def test_reasoning_of_case_v11(ask: Any, retriever: Retriever) -> None:
    none, no_query, same, tags = case("V11")
    without = ask(retriever, {"query": "x"})
    assert ask(retriever, none) == without
    assert (without["reasoning_used"], without["reasoning"]) == (False, "")
    assert ask(retriever, no_query)["error"] == {
        "code": "invalid_argument",
        "field": "query",
        "message": "query: blank; expected what to search for",
    }
    echoed = ask(retriever, same)
    assert (echoed["reasoning_used"], echoed["reasoning"], echoed["results"][0]["docid"]) == (True, "x", "x")
    stripped = ask(retriever, tags)
    assert stripped["reasoning"] == "old new plan"
    assert stripped == ask(retriever, {"query": "x", "reasoning": "old new plan"})
    assert stripped["results"] != without["results"]


def test_python_gives_the_same(retriever: Retriever) -> None:
    response = retriever.search("x", reasoning="<think>old</think> <tool_call>{}</tool_call> new plan")
    assert response == anyio.run(retriever.asearch, "x", "old new plan")
    rest = by_rest(retriever, {"query": "x", "reasoning": "old new plan"})
    assert [(result.docid, result.score) for result in response.results] == [
        (result["docid"], result["score"]) for result in rest["results"]
    ]
    assert (response.reasoning_used, response.reasoning_truncated) == (True, False)


def test_reasoning_changes_what_is_found(retriever: Retriever) -> None:
    assert retriever.search("find", reasoning="plan plan plan plan", k=1).results[0].docid == "plan"
    assert retriever.search("find", reasoning="opera oslo opera oslo", k=1).results[0].docid == "opera"


def test_reasoning_over_the_token_limit_loses_its_oldest_end_and_says_so(retriever: Retriever) -> None:
    response = retriever.search("x", reasoning="old " * 50 + "new " * 50)
    newest = retriever.search("x", reasoning="new " * 15)
    assert (response.reasoning_used, response.reasoning_truncated) == (True, True)
    assert [result.docid for result in response.results] == [result.docid for result in newest.results]
    assert by_rest(retriever, {"query": "x", "reasoning": "old " * 50})["reasoning_truncated"] is True


def test_reasoning_over_the_character_cap_is_cut_too(dense_index: Index) -> None:
    retriever = Retriever(dense_index, tiny_encoder(), limits=Limits(max_reasoning_chars=8))
    response = retriever.search("x", reasoning="old new plan")
    assert (response.reasoning, response.reasoning_truncated) == ("new plan", True)


def test_the_echo_to_an_agent_is_short(retriever: Retriever) -> None:
    reasoning = "old " * 1000 + "plan"
    assert by_rest(retriever, {"query": "x", "reasoning": reasoning})["reasoning"] == reasoning
    assert by_mcp(retriever, {"query": "x", "reasoning": reasoning})["reasoning"] == "… " + reasoning[-ECHO_CHARS:]


@pytest.mark.parametrize("ask", [by_rest, by_mcp])
def test_a_query_over_the_token_limit_is_an_error_of_the_query(ask: Any, retriever: Retriever) -> None:
    error = ask(retriever, {"query": "x " * 40, "reasoning": "old"})["error"]
    assert (error["code"], error["field"]) == ("invalid_argument", "query")
    assert error["message"].startswith("query: expected at most 24 tokens")


def test_an_encoder_that_does_not_read_reasoning_is_not_said_to(dense_index: Index) -> None:
    retriever = Retriever(dense_index, tiny_encoder(body=BODIES["query"]))
    response = retriever.search("x", reasoning="plan")
    assert (response.reasoning_used, response.reasoning) == (False, "")
    assert response == retriever.search("x")


def test_an_encoder_that_reads_the_question_is_not_served(dense_index: Index) -> None:
    with pytest.raises(EncoderError, match="tiny-32: reads the question beside the query, and a search carries"):
        Retriever(dense_index, tiny_encoder(body=BODIES["question+query"]))


def test_an_encoder_of_other_dimensions_is_refused_before_any_search(dense_index: Index) -> None:
    with pytest.raises(EncoderError, match="index tiny-32/32, query encoder tiny-8/8"):
        Retriever(dense_index, tiny_encoder(dim=8))


def test_threads_share_a_retriever_and_take_turns_at_its_encoder(dense_index: Index) -> None:
    forward = MeanOfWords(32)
    retriever = Retriever(dense_index, tiny_encoder(forward=forward))
    expected = {docid: retriever.search(docid, reasoning=docid) for docid in ("old", "new", "plan", "label")}

    async def ask(docid: str) -> None:
        for _ in range(5):
            assert await retriever.asearch(docid, reasoning=docid) == expected[docid]

    async def run() -> None:
        async with anyio.create_task_group() as group:
            for docid in list(expected) * 4:
                group.start_soon(ask, docid)

    anyio.run(run)
    assert forward.most_inside == 1
