"""The episode loop with a scripted model and real tools."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentir.agent.episode import Agent, Limits
from agentir.agent.journal import Journal, JournalFolder
from agentir.agent.terminal import AnswerPolicy
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel
from agentir.errors import AgentirError, BudgetError, ChatError, ContextOverflowError, InputError
from agentir.records import Message, ToolCall, Trajectory, Usage
from agentir.tools.tool import CallContext, Tool, ToolOutput
from agentir.tools.toolset import Toolset


def call(query: Any, call_id: str = "c1", name: str = "search") -> ToolCall:
    arguments = {"query": query}
    return ToolCall(call_id=call_id, name=name, arguments=arguments, raw_arguments=json.dumps(arguments))


def think(reasoning: str, *calls: ToolCall, **more: Any) -> Generation:
    return Generation(reasoning=reasoning, text="", calls=calls, finish="calls" if calls else "stop", **more)


def answer(text: str) -> Generation:
    return Generation(reasoning="Enough.", text=text, answer=text)


SILENT = Generation(reasoning="Hm.", text="")
CUT = Generation(reasoning="I think and think", text="", finish="length")


def tools(log: list[str] | None = None) -> Toolset:
    async def search(query: str, context: CallContext) -> ToolOutput:
        """Searches."""
        (log if log is not None else []).append(f"{query} | {context.reasoning}")
        if query == "away":
            raise AgentirError("no server")
        return ToolOutput(content=f"found {query}", docids=(f"d-{query}",))

    return Toolset([Tool(search)], max_calls=2)


def agent(
    replies: Sequence[Generation] | Callable[..., Generation], log: list[str] | None = None, **settings: Any
) -> Agent:
    return Agent(name="test", model=ScriptedModel(replies), toolset=tools(log), system="Search.", **settings)


def run(agent: Agent, journal: Journal | None = None) -> Trajectory:
    return asyncio.run(agent.run("Where?", qid="q1", journal=journal))


def test_an_episode_from_question_to_answer() -> None:
    log: list[str] = []
    usage = Usage(num_calls=1, num_attempts=1, prompt_tokens=7, completion_tokens=3)
    trajectory = run(
        agent(
            [
                think("First.", call("a"), usage=usage),
                think("Next.", call("b"), call("c", "c2"), usage=usage),
                answer("Bergen"),
            ],
            log,
        )
    )
    assert log == ["a | First.", "b | Next.", "c | Next."]
    assert (trajectory.qid, trajectory.status, trajectory.answer) == ("q1", "completed", "Bergen")
    assert [turn.index for turn in trajectory.turns] == [0, 1, 2]
    assert [result.call_id for result in trajectory.turns[1].results] == ["c1", "c2"]
    assert trajectory.turns[0].results[0].docids == ("d-a",)
    assert trajectory.usage == usage + usage
    assert [message.content for message in trajectory.prompt] == ["Search.", "Where?"]
    assert trajectory.tools[0]["name"] == "search"


def test_what_the_model_is_sent() -> None:
    seen: list[list[tuple[str, str]]] = []

    def reply(messages: Sequence[Message]) -> Generation:
        seen.append([(message.role, message.content) for message in messages])
        return [think("t", call("a")), SILENT, answer("x")][len(seen) - 1]

    run(agent(reply, terminal=AnswerPolicy(answer_form="Answer in one word.")))
    assert seen[1] == [("system", "Search."), ("user", "Where?"), ("assistant", ""), ("tool", "found a")]
    assert seen[2][4:] == [
        ("assistant", ""),
        (
            "user",
            "Your last message held no tool call that can be run and no final answer. Go on: call a tool, or give your final "
            "answer. Answer in one word.",
        ),
    ]


@pytest.mark.parametrize(
    ("calls", "contents"),
    [
        (
            [call("a", "c1"), call("b", "c2"), call("c", "c3")],
            ["found a", "found b", "Error: at most 2 calls a turn; this one was not run"],
        ),
        ([call("a", name="find")], ["Error: there is no tool 'find'; the tools are: search"]),
        ([call({"a": 1})], ["Error: search: query: a valid string expected, found {'a': 1}"]),
        ([call(7)], ["found 7"]),
        ([call(["a"])], ["found a"]),
        ([ToolCall(call_id="c1", name="search", arguments={}, raw_arguments="{}")], ["Error: search: query: missing"]),
        (
            [ToolCall(call_id="c1", name="search", arguments={"query": "a", "k": 3}, raw_arguments="")],
            ["found a\n\n[search has no argument k; left out]"],
        ),
        (
            [ToolCall(call_id="c1", name="search", arguments=None, raw_arguments="{query: a")],
            ["Error: the call could not be read; expected a JSON object of arguments, found '{query: a'"],
        ),
    ],
)
def test_every_call_is_answered_in_order_and_errors_are_data(calls: list[ToolCall], contents: list[str]) -> None:
    trajectory = run(agent([think("t", *calls), answer("x")]))
    results = trajectory.turns[0].results
    assert [result.content for result in results] == contents
    assert [result.call_id for result in results] == [call.call_id for call in calls]
    assert [result.error for result in results] == [content.startswith("Error") for content in contents]


def test_a_cut_generation_is_neither_run_nor_sent_back() -> None:
    sent: list[Sequence[Message]] = []

    def reply(messages: Sequence[Message]) -> Generation:
        sent.append(list(messages))
        return [CUT, answer("x")][len(sent) - 1]

    trajectory = run(agent(reply))
    assert [message.role for message in sent[1]] == ["system", "user", "user"]
    assert "cut off" in sent[1][2].content and trajectory.turns[1].prompted == sent[1][2].content
    assert (trajectory.turns[0].finish, trajectory.status) == ("length", "completed")


def test_an_agent_that_never_answers_ends_incomplete() -> None:
    trajectory = run(agent([SILENT] * 9))
    assert (trajectory.status, trajectory.answer, len(trajectory.turns)) == ("incomplete", "", 3)


def test_the_answer_is_demanded_at_the_turn_limit_and_calls_are_then_refused() -> None:
    log: list[str] = []
    replies = [think("t", call("a"))] * 3 + [answer("Bergen")]
    trajectory = run(agent(replies, log, limits=Limits(max_turns=2)))
    assert (trajectory.status, trajectory.answer, len(log)) == ("forced", "Bergen", 2)
    assert trajectory.turns[2].prompted.startswith("You have used all your turns. Call no more tools.")
    assert trajectory.turns[2].results[0].content == "Error: a limit was reached; no more tools are run"


def test_the_demand_is_repeated_only_so_often() -> None:
    trajectory = run(agent([think("t", call("a"))] * 20, limits=Limits(max_turns=2)))
    assert (trajectory.status, len(trajectory.turns)) == ("incomplete", 5)


def test_the_answer_is_demanded_when_the_context_is_full() -> None:
    trajectory = run(
        agent([think("t", call("a" * 800), context_tokens=900), answer("x")], limits=Limits(max_context_tokens=1000))
    )
    assert trajectory.status == "forced" and "no room" in trajectory.turns[1].prompted


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ChatError("timeout", "m: no reply"), "failed", "timeout: m: no reply"),
        (ContextOverflowError("m: too long"), "incomplete", "context_overflow: m: too long"),
    ],
)
def test_a_model_that_cannot_be_reached_is_data(error: ChatError, status: str, text: str) -> None:
    def reply(messages: Sequence[Message]) -> Generation:
        if len(messages) > 2:
            raise error
        return think("t", call("a"))

    trajectory = run(agent(reply))
    assert (trajectory.status, trajectory.error, len(trajectory.turns)) == (status, text, 1)


def test_a_search_that_is_away_fails_the_episode_instead_of_teaching_the_agent() -> None:
    trajectory = run(agent([think("t", call("away")), answer("I found nothing")]))
    assert (trajectory.status, trajectory.error) == ("failed", "tool: no server")


def test_a_used_up_budget_is_not_the_episodes_fault() -> None:
    def reply(messages: Sequence[Message]) -> Generation:
        raise BudgetError("budget used up")

    with pytest.raises(BudgetError):
        run(agent(reply))


def test_an_episode_goes_on_from_its_journal_at_every_point(tmp_path: Path) -> None:
    script = [think("1", call("a")), SILENT, think("2", call("b"), call("c", "c2")), CUT, answer("Bergen")]
    path = tmp_path / "whole.jsonl"
    log: list[str] = []
    whole = run(agent(script, log), Journal(path))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 7 and log == ["a | 1", "b | 2", "c | 2"]
    for num_kept in range(len(lines) + 1):
        for torn in (b"", b'{"kind": "gener'):
            part = tmp_path / "part.jsonl"
            part.write_bytes(b"".join(lines[:num_kept]) + torn)
            kept = [json.loads(line)["kind"] for line in lines[:num_kept]]
            log.clear()
            rest = script[kept.count("generation") :]
            assert run(agent(rest, log), Journal(part)) == whole
            assert len(log) == [3, 3, 2, 2, 2, 0, 0, 0][num_kept]
            assert part.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("limits", [Limits(max_turns=2), Limits(max_turns=9, max_seconds=60.0)], ids=["turns", "time"])
def test_a_forced_answer_is_forced_again_after_a_stop_at_every_point(
    tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a later start does not decide anew what an earlier one decided."""
    script = [
        think("1", call("a")),
        think("2", call("b")),
        think("3", call("c"), latency=100.0),
        SILENT,
        answer("Bergen"),
    ]
    path = tmp_path / "whole.jsonl"
    seen: list[list[str]] = []

    def recording(rest: list[Generation]) -> Callable[[Sequence[Message]], Generation]:
        def reply(messages: Sequence[Message]) -> Generation:
            seen.append([message.content for message in messages])
            if limits.max_seconds is not None and len(messages) > 5:
                now[0] += 100
            return rest.pop(0)

        return reply

    now = [0.0]
    monkeypatch.setattr("agentir.agent.episode.time.monotonic", lambda: now[0])
    whole = run(agent(recording([*script]), limits=limits), Journal(path))
    asked = [*seen]
    assert (whole.status, whole.answer) == ("forced", "Bergen")
    lines = path.read_bytes().splitlines(keepends=True)
    for num_kept in range(len(lines)):
        now[0] = 0.0
        seen.clear()
        part = tmp_path / "part.jsonl"
        part.write_bytes(b"".join(lines[:num_kept]))
        num_done = sum(json.loads(line)["kind"] == "generation" for line in lines[:num_kept])
        assert run(agent(recording(script[num_done:]), limits=limits), Journal(part)) == whole
        assert seen == asked[num_done:] and part.read_bytes() == path.read_bytes()


def test_when_the_context_overflows_the_last_results_are_cut_and_the_answer_is_forced(tmp_path: Path) -> None:
    sent: list[list[str]] = []

    def reply(messages: Sequence[Message]) -> Generation:
        sent.append([message.content for message in messages])
        if sum(map(len, sent[-1])) > 4000:
            raise ContextOverflowError("m: too long")
        return think("t", call("x" * 5000)) if len(sent) == 1 else answer("Bergen")

    path = tmp_path / "journal.jsonl"
    trajectory = run(agent(reply), Journal(path))
    assert (trajectory.status, trajectory.answer, len(sent)) == ("forced", "Bergen", 3)
    assert sent[2][3].endswith("[... cut: no room]") and len(sent[2][3]) < 600
    assert len(trajectory.turns[0].results[0].content) > 5000, "what is stored is whole"
    assert run(agent([]), Journal(path)) == trajectory


def test_the_forced_turn_may_call_nothing_and_is_told_so_to_the_server() -> None:
    model = ScriptedModel([think("t", call("a")), answer("x")])
    asyncio.run(Agent(name="t", model=model, toolset=tools(), limits=Limits(max_turns=1)).run("Where?"))
    assert [request.tool_choice for request in model.requests] == ["auto", "none"]
    assert [len(request.tools) for request in model.requests] == [1, 1]


def test_what_a_failed_call_took_is_in_the_journal(tmp_path: Path) -> None:
    def reply(messages: Sequence[Message]) -> Generation:
        error = ChatError("bad_reply", "m: broken")
        error.usage = Usage(num_attempts=3, prompt_tokens=30)
        raise error

    journals = JournalFolder(tmp_path)
    for _ in range(2):
        journal = journals.open("q1")
        assert run(agent(reply), journal).status == "failed"
    assert journals.usage() == Usage(num_attempts=6, prompt_tokens=60)


def test_a_journal_that_was_changed_or_is_of_another_episode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(agent([think("1", call("a")), think("2", call("b")), answer("x")]), Journal(path, "q1"))
    lines = path.read_bytes().splitlines(keepends=True)
    assert Journal(path, "q1").num_recorded == 5
    with pytest.raises(InputError, match=r"journal\.jsonl:1: does not follow"):
        Journal(path, "q2")
    for changed in (lines[2:], [*lines[:1], *lines[2:]], [lines[0].replace(b'"1"', b'"7"'), *lines[1:]]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(InputError, match=r"does not follow what is before it: the file was changed; delete it"):
            Journal(path, "q1")


def test_calls_run_at_the_same_time_and_results_keep_their_order() -> None:
    finished: list[str] = []

    async def wait(seconds: float) -> ToolOutput:
        """Waits."""
        await asyncio.sleep(seconds)
        finished.append(str(seconds))
        return ToolOutput(content=str(seconds))

    calls = [
        ToolCall(call_id=f"c{number}", name="wait", arguments={"seconds": seconds})
        for number, seconds in enumerate((0.3, 0.1, 0.2))
    ]
    toolset = Toolset([Tool(wait)])

    async def measure() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        results = await toolset.run(calls, CallContext())
        assert [result.content for result in results] == ["0.3", "0.1", "0.2"]
        return loop.time() - began

    assert asyncio.run(measure()) < 0.5
    assert finished == ["0.1", "0.2", "0.3"]


def test_places_count_calls_of_the_same_tool_and_unreadable_ones() -> None:
    async def where(context: CallContext) -> ToolOutput:
        """Tells its place."""
        return ToolOutput(content=str(context.place))

    toolset = Toolset([Tool(where, "a"), Tool(where, "b")])
    calls = [
        ToolCall(call_id=str(number), name=name, arguments={} if name else None)
        for number, name in enumerate(["a", "", "b", "a", "b"])
    ]
    results = asyncio.run(toolset.run(calls, CallContext()))
    assert [result.content for result in results if result.run] == ["0", "1", "2", "2"]


def test_damaged_journal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind": 7}\n{"kind": "generation", "value": null}\n')
    with pytest.raises(InputError, match=r"journal\.jsonl:1: kind"):
        Journal(path)
