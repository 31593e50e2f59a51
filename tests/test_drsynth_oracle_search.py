"""The search tool whose results an oracle ranks, over a real index."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentir.agent.journal import JournalFolder
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel, said
from agentir.drsynth.candidates import ListMaker
from agentir.drsynth.label_file import LabelFile
from agentir.drsynth.oracle import LabelOutcome, Oracle
from agentir.drsynth.oracle_options import OracleOptions
from agentir.drsynth.oracle_search import OracleSearch
from agentir.jsonl import read_records, write_jsonl
from agentir.records import Document, QAItem
from agentir.search.builder import build_index
from agentir.search.retriever import Retriever
from agentir.tools.tool import CallContext

CONTEXT = CallContext(qid="q", question="Which?", reasoning="Hm.", turn=0)


@pytest.fixture
def retriever(tmp_path: Path) -> Iterator[Retriever]:
    texts = ("a red mill", "a red bridge", "a blue tower")
    write_jsonl(tmp_path / "corpus.jsonl", [Document(docid=f"d{n}", text=text) for n, text in enumerate(texts)])
    build_index(tmp_path / "index", tmp_path / "corpus.jsonl")
    with Retriever.open(tmp_path / "index", searcher="bm25") as opened:
        yield opened


def search(retriever: Retriever, model: ScriptedModel, path: Path, query: str) -> tuple[str, ...]:
    options = OracleOptions(placement="append")
    item = QAItem(qid="q", question="Which?", answers=("mill",))
    with LabelFile(path, JournalFolder(path.with_suffix(".open"))) as labels:
        maker = ListMaker(retriever.index.pack, retriever.searcher, options)
        oracle = Oracle(model, options.settings)
        tool = OracleSearch(retriever, maker, oracle, {"q": item}, labels, k=2, form="text").tool
        return asyncio.run(tool.run({"query": query}, CONTEXT)).docids


def test_a_ranking_of_an_earlier_start_is_taken_for_the_same_query_only(retriever: Retriever, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    model = ScriptedModel([said("[2] > [1]"), said("[1]")])
    red = search(retriever, model, path, "red")
    assert set(red) == {"d0", "d1"}
    assert search(retriever, model, path, "red") == red and len(model.requests) == 1
    assert search(retriever, model, path, "blue") == ("d2",) and len(model.requests) == 2
    assert [one.ranking.subquery.query for one in read_records(path, LabelOutcome)] == ["red", "blue"]


def test_a_search_that_finds_nothing_is_not_put_to_the_oracle(retriever: Retriever, tmp_path: Path) -> None:
    def never(messages: object) -> Generation:
        raise AssertionError("it was asked")

    assert search(retriever, ScriptedModel(never), tmp_path / "labels.jsonl", "zzz") == ()
