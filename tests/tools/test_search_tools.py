"""The tools search and visit over a real index: what a model is offered, and what it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentir.jsonl import write_jsonl
from agentir.records import Document
from agentir.search.builder import build_index
from agentir.search.retriever import Retriever, SearchResponse
from agentir.tools.search import SearchTools
from agentir.tools.tool import CallContext, Tool, ToolError, ToolOutput

DOCUMENTS = [
    Document(docid="d1", title="Ana Fell", text="Ana Fell painted boats in the harbour."),
    Document(docid="d2", text="\nThe harbour of Bergen shelters boats, ferries and fishing vessels.\nIt is old."),
    Document(docid="ü 3", title="1984", text="1984 is a novel. " + "Newspeak has few words. " * 4),
    Document(docid="d4", text="Lamps."),
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("tools")
    write_jsonl(folder / "corpus.jsonl", DOCUMENTS)
    build_index(folder / "index", folder / "corpus.jsonl")
    with Retriever.open(folder / "index", searcher="bm25", snippet_words=12) as opened:
        yield opened


def run(tool: Tool, context: CallContext | None = None, **arguments: Any) -> ToolOutput:
    return asyncio.run(tool.run(arguments, context or CallContext()))


def test_what_a_model_is_offered(retriever: Retriever) -> None:
    tools = SearchTools(retriever)
    assert [
        (tool.schema.name, tool.schema.description, tool.schema.parameters)
        for tool in (tools.search, tools.search_several, tools.visit)
    ] == [
        (
            "search",
            "Searches the corpus and gives the documents that fit best, each with the beginning of its text.",
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to search for, in a few words or a sentence."}
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        ),
        (
            "search",
            "Searches the corpus for each query and gives the documents that fit it best, each with the beginning of its "
            "text.",
            {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 1,
                        "description": "Queries that are searched for one by one.",
                    }
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        ),
        (
            "visit",
            "Shows the whole text of a document that a search found.",
            {
                "type": "object",
                "properties": {
                    "docid": {
                        "type": "string",
                        "description": "The id of a document, exactly as a search gave it.",
                    }
                },
                "required": ["docid"],
                "additionalProperties": False,
            },
        ),
    ]


HARBOUR = """\
A search for 'harbour boats' found 2 results:

1. Ana Fell (docid: d1)
Ana Fell painted boats in the harbour.

2. The harbour of Bergen shelters boats, ferries and ... (docid: d2)
The harbour of Bergen shelters boats, ferries and fishing vessels.
It is …"""
NOTHING = "A search for 'zebra' found nothing. Try other or fewer words."


def test_results_as_text(retriever: Retriever) -> None:
    output = run(SearchTools(retriever).search, query="harbour boats")
    assert output == ToolOutput(content=HARBOUR, docids=("d1", "d2"), compact="[results of 'harbour boats': d1, d2]")


def test_results_as_json(retriever: Retriever) -> None:
    output = run(SearchTools(retriever, form="json", k=1).search, query="newspeak")
    score = round(retriever.search("newspeak", k=1).results[0].score, 4)
    assert output == ToolOutput(
        content=f"""\
[
  {{
    "docid": "ü 3",
    "title": "1984",
    "score": {score},
    "snippet": "1984 is a novel. Newspeak has few words. Newspeak has few words. …"
  }}
]""",
        docids=("ü 3",),
        compact="[results of 'newspeak': ü 3]",
    )


def test_no_results(retriever: Retriever) -> None:
    assert run(SearchTools(retriever).search, query="zebra") == ToolOutput(
        content=NOTHING, compact="[results of 'zebra': ]"
    )
    assert run(SearchTools(retriever, form="json").search, query="zebra").content == "[]"


def test_several_queries_are_shown_one_by_one_and_each_document_counts_once(retriever: Retriever) -> None:
    output = run(SearchTools(retriever).search_several, query=["harbour boats", "zebra", "harbour boats"])
    assert output == ToolOutput(
        content=f"{HARBOUR}\n=======\n{NOTHING}\n=======\n{HARBOUR}",
        docids=("d1", "d2"),
        compact="[results of 'harbour boats': d1, d2]\n[results of 'zebra': ]\n[results of 'harbour boats': d1, d2]",
    )


@pytest.mark.parametrize("k", [1, 2])
def test_at_most_k_results(retriever: Retriever, k: int) -> None:
    assert len(run(SearchTools(retriever, k=k).search, query="harbour boats").docids) == k


@pytest.mark.parametrize(
    ("docid", "chars", "shown"),
    [
        ("d1", 1000, "Ana Fell\n\nAna Fell painted boats in the harbour."),
        ("d1", 10, "Ana Fell\n\nAna Fell p\n[... cut: 10 of 38 characters]"),
        ("d1", 38, "Ana Fell\n\nAna Fell painted boats in the harbour."),
        ("d4", 1000, "Lamps."),
    ],
)
def test_a_visit_shows_the_text_and_says_where_it_is_cut(
    retriever: Retriever, docid: str, chars: int, shown: str
) -> None:
    output = run(SearchTools(retriever, visit_chars=chars).visit, docid=docid)
    assert output == ToolOutput(content=shown, docids=(docid,), compact=f"[read {docid}]")


@pytest.mark.parametrize(
    ("docid", "fault"),
    [
        ("d9", "there is no document 'd9'; give an id exactly as a search result has it"),
        ("x" * 300, f"there is no document '{'x' * 200}'; give an id exactly as a search result has it"),
    ],
)
def test_a_visit_of_an_unknown_document_is_told(retriever: Retriever, docid: str, fault: str) -> None:
    with pytest.raises(ToolError) as raised:
        run(SearchTools(retriever).visit, docid=docid)
    assert str(raised.value) == fault


def test_a_visit_without_an_id_is_told(retriever: Retriever) -> None:
    with pytest.raises(ToolError, match="docid"):
        run(SearchTools(retriever).visit, docid="")


@pytest.mark.parametrize(
    ("several", "arguments", "query", "note"),
    [
        (
            False,
            {"query": "harbour boats", "topn": 10},
            "harbour boats",
            "\n\n[search has no argument topn; left out]",
        ),
        (False, {"query": ["harbour boats"]}, "harbour boats", ""),
        (False, {"query": 1984}, "1984", ""),
        (False, {"query": [1984]}, "1984", ""),
        (True, {"query": "harbour boats"}, "harbour boats", ""),
        (True, {"query": [1984], "k": 3}, "1984", "\n\n[search has no argument k; left out]"),
    ],
)
def test_calls_that_have_one_meaning_only_are_searched(
    retriever: Retriever, several: bool, arguments: dict[str, Any], query: str, note: str
) -> None:
    tools = SearchTools(retriever)
    output = run(tools.search_several if several else tools.search, **arguments)
    assert output.content == run(tools.search, query=query).content + note
    assert output.docids and output.docids == run(tools.search, query=query).docids


@pytest.mark.parametrize(
    "arguments", [{}, {"q": "boats"}, {"query": ["a", "b"]}, {"query": []}, {"query": None}, {"query": {"text": "a"}}]
)
def test_calls_that_do_not_say_what_to_search_for_are_told(retriever: Retriever, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=r"^search: query: "):
        run(SearchTools(retriever).search, **arguments)


class Listening:
    """A retriever that notes what it is asked, and passes it on."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.asked: list[tuple[str, str, int | None]] = []

    async def asearch(self, query: str, reasoning: str = "", k: int | None = None) -> SearchResponse:
        self.asked.append((query, reasoning, k))
        return await self._retriever.asearch(query, reasoning, k)

    async def aget_document(self, docid: str) -> Document | None:
        return await self._retriever.aget_document(docid)


@pytest.mark.parametrize(("pass_reasoning", "heard"), [(False, ""), (True, "It must be a port.")])
def test_the_reasoning_of_the_turn_goes_to_the_retriever_where_that_is_asked_for(
    retriever: Retriever, pass_reasoning: bool, heard: str
) -> None:
    listening = Listening(retriever)
    tools = SearchTools(listening, k=3, pass_reasoning=pass_reasoning)
    context = CallContext(reasoning="It must be a port.")
    run(tools.search, context, query="harbour")
    run(tools.search_several, context, query=["boats", "ferries"])
    assert listening.asked == [("harbour", heard, 3), ("boats", heard, 3), ("ferries", heard, 3)]
