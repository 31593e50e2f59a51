"""DR-Synth in one call, with a scripted model over a real index."""

import asyncio
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentir.agent.episode import Agent
from agentir.agent.prompts import SYSTEM
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel, said
from agentir.drsynth.candidates import ListOptions
from agentir.drsynth.examples import ExampleRules
from agentir.drsynth.synthesis import Synthesis, synthesize
from agentir.errors import BudgetError, ChatError, InputError
from agentir.jsonl import write_jsonl
from agentir.records import Document, Message, QAItem, ToolCall
from agentir.search.builder import build_index
from agentir.search.index import Index
from agentir.tools.toolset import Toolset

Script = Callable[[Sequence[Message]], Generation]
ITEMS = [
    QAItem(qid=f"q{n}", question=f"When was mill {n} built?", answers=(str(1800 + n),), gold_titles=(f"Mill {n}",))
    for n in range(3)
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthesis")
    documents = [Document(docid=f"d{n}", title=f"Mill {n}", text=f"It was built in {1800 + n}.") for n in range(20)]
    write_jsonl(folder / "corpus.jsonl", documents)
    build_index(folder / "index", folder / "corpus.jsonl")
    return folder / "index"


def searches(*queries: str, name: str = "search") -> Generation:
    calls = tuple(ToolCall(call_id=f"c{n}", name=name, arguments={"query": one}) for n, one in enumerate(queries))
    return Generation(reasoning="The year is missing.", text="", calls=calls, finish="calls")


def agent(messages: Sequence[Message]) -> Generation:
    """Searches for its question, then answers."""
    return said("1800") if messages[-1].role == "tool" else searches(messages[-1].content)


def oracle(messages: Sequence[Message]) -> Generation:
    """Puts the right year last, so that an unguarded gold document would be a negative."""
    year = re.search(r"Correct answer: (\d+)", messages[-1].content)
    assert year is not None
    numbers = re.findall(r"^\[(\d+)\].*?in (\d+)\.$", messages[-1].content, re.MULTILINE | re.DOTALL)
    numbers.sort(key=lambda number: number[1] == year[1])
    return said(" > ".join(f"[{number}]" for number, _ in numbers))


def both(messages: Sequence[Message]) -> Generation:
    return oracle(messages) if "Correct answer" in messages[-1].content else agent(messages)


def made(index: Index | Path, script: Script = both, items: Sequence[QAItem] = ITEMS, **given: Any) -> Synthesis:
    return asyncio.run(synthesize(items, index, ScriptedModel(script), **given))


def test_gold_documents_named_by_title_are_shown_and_never_negatives(index: Path) -> None:
    done = made(index, lists=ListOptions(depth=10), rules=ExampleRules(num_negatives=9))
    assert len(done.rankings) == 3 and not done.left_out
    examples = done.examples.examples["train"]
    assert [example.subquery.qid for example in examples] == ["q0", "q1", "q2"]
    for n, (ranking, example) in enumerate(zip(done.rankings, examples, strict=True)):
        assert example.subquery.reasoning == "The year is missing."
        assert example.gold_docids == (f"d{n}",)
        assert ranking.order[-1] == f"d{n}"
        assert example.negative_docids and f"d{n}" not in example.negative_docids
    assert done.gold["questions_with_gold_found_by_name"] == 3


def test_the_default_agent_searches_once_a_turn_and_has_a_system_prompt(index: Path) -> None:
    def eager(messages: Sequence[Message]) -> Generation:
        if messages[-1].role == "user" and "Correct answer" not in messages[-1].content:
            return searches("mill 1", "mill 2")
        return both(messages)

    done = made(index, eager)
    first = done.trajectories[0]
    assert first.prompt[0] == Message(role="system", content=SYSTEM)
    assert [result.run for result in first.turns[0].results] == [True, False]
    assert (done.extraction["subqueries"], done.extraction["calls_not_run"]) == (3, 3)


def test_an_opened_index_another_agent_and_another_oracle(index: Path) -> None:
    ranking, mute = (
        ScriptedModel(oracle, name="oracle"),
        Agent(name="x", model=ScriptedModel(agent), toolset=Toolset([])),
    )
    with Index.open(index) as opened:
        done = made(opened, agent, oracle_model=ranking)
        assert len(ranking.requests) == len(done.rankings) == 3
        none = made(opened, agent, agent=mute)
        assert len(opened.pack) == 20, "it stays open"
    assert none.trajectories[0].agent == "x" and none.extraction["calls_not_run"] == 3 and not none.rankings


def test_the_oracle_is_not_asked_about_questions_without_answer(index: Path) -> None:
    done = made(index, items=[replace(ITEMS[0], answers=()), *ITEMS[1:]])
    assert len(done.trajectories) == 3 and [ranking.subquery.qid for ranking in done.rankings] == ["q1", "q2"]
    assert done.left_out == {"of_questions_without_answer": 1}


def test_searches_that_find_nothing_are_counted(index: Path) -> None:
    def lost(messages: Sequence[Message]) -> Generation:
        return both(messages) if messages[-1].role == "tool" else searches("zebra")

    done = made(index, lost, items=[replace(item, gold_titles=()) for item in ITEMS])
    assert not done.rankings and done.left_out == {"without_candidates": 3}


def test_an_oracle_that_fails_costs_its_ranking_only(index: Path) -> None:
    def failing(messages: Sequence[Message]) -> Generation:
        if "Correct answer: 1801" in messages[-1].content:
            raise ChatError("refused", "m: status 400: no")
        return both(messages)

    with pytest.warns(UserWarning, match="1 of 3 sub-queries have no ranking; the first error: m: status 400: no"):
        done = made(index, failing)
    assert len(done.trajectories) == 3 and len(done.rankings) == 2 and done.left_out == {"oracle_failed": 1}


def test_an_agent_that_fails_is_data(index: Path) -> None:
    def failing(messages: Sequence[Message]) -> Generation:
        if "mill 1" in messages[1].content:
            raise ChatError("server_error", "down")
        return both(messages)

    done = made(index, failing)
    assert [trajectory.status for trajectory in done.trajectories] == ["completed", "failed", "completed"]
    assert done.extraction["failed_trajectories"] == 1 and len(done.rankings) == 2


@pytest.mark.parametrize("asked", ["When was mill 2", "Correct answer: 1802"])
def test_a_used_up_budget_stops_everything(index: Path, asked: str) -> None:
    def poor(messages: Sequence[Message]) -> Generation:
        if asked in messages[-1].content:
            raise BudgetError("budget used up")
        return both(messages)

    with pytest.raises(BudgetError, match="budget used up"), warnings.catch_warnings():
        warnings.simplefilter("error")
        made(index, poor)


def test_what_cannot_work_is_told_before_anything_is_asked(index: Path) -> None:
    model = ScriptedModel([])
    apart = [replace(ITEMS[0], split="train"), replace(ITEMS[1], split="heldout", gold_titles=("mill 0",))]
    for items, fault in (([ITEMS[0], ITEMS[0]], "one question an id, found several of 'q0'"), (apart, "gold")):
        with pytest.raises(InputError, match=fault):
            asyncio.run(synthesize(items, index, model))
    assert not model.requests
