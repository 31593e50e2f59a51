import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentir.agent.episode import Agent, Limits
from agentir.artifacts import Artifact
from agentir.chat.dialects.dialect import Dialect
from agentir.chat.dialects.json_text import JsonTextDialect
from agentir.chat.dialects.qwen3 import Qwen3Dialect
from agentir.chat.dialects.tongyi import TongyiDialect
from agentir.chat.model import Generation
from agentir.chat.scripted import ScriptedModel
from agentir.cli import run
from agentir.config import Section
from agentir.drsynth.extraction import ExtractionOptions, extract
from agentir.drsynth.sft import SftOptions, SftRow, sft_rows
from agentir.errors import ConfigError
from agentir.records import Message, QAItem, ToolCall, ToolResult, Trajectory, Turn
from agentir.tools.tool import Tool, ToolOutput
from agentir.tools.toolset import Toolset

QUESTIONS = {"q": QAItem(qid="q", question="Who?", answers=("Abba",))}
PROMPT = (Message(role="system", content="Search."), Message(role="user", content="Who?"))
TOOL = {"name": "search", "description": "Finds.", "parameters": {"type": "object"}}


def turn(index: int, *arguments: dict[str, Any] | None, failed: int = 0, refused: int = 0, **given: Any) -> Turn:
    """A turn with a call for each of the arguments, of which the first `failed` fail and the last `refused` are not run."""
    calls = tuple(
        ToolCall(call_id=f"{index}.{n}", name="search", arguments=value, raw_arguments="{oops" if value is None else "")
        for n, value in enumerate(arguments)
    )
    results = tuple(
        ToolResult(
            call_id=call.call_id,
            content=f"r{call.call_id}",
            error=n < failed or n >= len(calls) - refused,
            run=n < len(calls) - refused,
        )
        for n, call in enumerate(calls)
    )
    values = {"reasoning": f"think {index}", "text": "", "calls": calls, "results": results, **given}
    return Turn(index=index, **values)


def trajectory(*turns: Turn, **given: Any) -> Trajectory:
    values = {"qid": "q", "agent": "a", "answer": "It is Abba.", "status": "completed", "prompt": PROMPT, **given}
    return Trajectory(turns=turns, **values)


def rows(*trajectories: Trajectory, **options: Any) -> tuple[list[SftRow], dict[str, int]]:
    made, counts = sft_rows(trajectories, QUESTIONS, SftOptions(**options))
    assert (counts["trajectories"], counts["rows"]) == (len(trajectories), len(made))
    return made, {name: count for name, count in counts.items() if count and name not in ("trajectories", "rows")}


def test_a_trajectory_becomes_a_conversation_in_which_only_the_agent_is_trained_on() -> None:
    made, counts = rows(
        trajectory(
            turn(0, {"query": "pop grüp"}),
            turn(1, prompted="Answer now.", text="Abba", reasoning=""),
            tools=(TOOL,),
        )
    )
    function = {"name": "search", "arguments": '{"query": "pop grüp"}'}
    assert made == [
        SftRow(
            qid="q",
            messages=[
                {"role": "system", "content": "Search.", "trainable": False},
                {"role": "user", "content": "Who?", "trainable": False},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "think 0",
                    "tool_calls": [{"id": "0.0", "type": "function", "function": function}],
                    "trainable": True,
                },
                {"role": "tool", "content": "r0.0", "tool_call_id": "0.0", "trainable": False},
                {"role": "user", "content": "Answer now.", "trainable": False},
                {"role": "assistant", "content": "Abba", "trainable": True},
            ],
            tools=[{"type": "function", "function": TOOL}],
        )
    ]
    assert counts == {"turns": 2, "trainable_turns": 2}


@pytest.mark.parametrize(
    ("spoilt", "trained", "reason"),
    [
        (turn(0, {"query": "a"}, {"query": "b"}, failed=2), False, "turns_with_failed_calls_only"),
        (turn(0, {"query": "a"}, {"query": "b"}, failed=1), True, None),
        (turn(0, {"query": "a"}, None), False, "turns_with_unreadable_calls"),
        (turn(0, {"query": "a"}, results=()), True, None),
        (turn(0, {"query": "a"}, {"query": "b"}, refused=1), False, "turns_with_calls_not_run"),
        (turn(0, {"query": "a"}, refused=1), False, "turns_with_calls_not_run"),
        (turn(0), False, "turns_without_call_or_answer"),
        (turn(0, text=" "), False, "turns_without_call_or_answer"),
        (turn(0, text="Which year?"), True, None),  # of a transcript: it may ask its user
        (turn(0, text="Let me think.", finish="stop"), False, "turns_without_call_or_answer"),
    ],
)
def test_turns_with_bad_calls_are_shown_but_not_trained_on(spoilt: Turn, trained: bool, reason: str | None) -> None:
    made, counts = rows(trajectory(spoilt, turn(1, text="Abba")))
    said = [message["trainable"] for message in made[0].messages if message["role"] == "assistant"]
    assert said == [trained, True]
    assert counts == {"turns": 2, "trainable_turns": 1 + trained} | ({} if reason is None else {reason: 1})


def test_failed_calls_are_trained_on_where_that_is_asked_for() -> None:
    turns = turn(0, {"query": "a"}, failed=1), turn(1, {"query": "b"}, refused=1)
    made, counts = rows(trajectory(*turns), train_on_failed_calls=True)
    assert [message["trainable"] for message in made[0].messages[2::2]] == [True, False]
    assert counts == {"turns": 2, "trainable_turns": 1, "turns_with_calls_not_run": 1}


@pytest.mark.parametrize(
    ("dialect", "content", "reasoning"),
    [
        (TongyiDialect(), "<think>It is settled.</think>\n<answer>Abba</answer>", "It is settled."),
        (TongyiDialect(), "<think>It is settled.</think>\nSo it is:\n<answer>\nAbba\n</answer>", "It is settled."),
        (JsonTextDialect(), '{"thought": "It is settled.", "answer": "Abba"}', "It is settled."),
        (JsonTextDialect(), 'Done.\n```json\n{"answer": "Abba"}\n```', "Done."),
        (Qwen3Dialect(), "<think>It is settled.</think>\n\nAbba", "It is settled."),
    ],
)
def test_the_last_message_is_the_answer_without_the_markup_of_its_dialect(
    dialect: Dialect, content: str, reasoning: str
) -> None:
    said = dialect.read({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    agent = Agent(name="a", model=ScriptedModel([said]), toolset=Toolset([]))
    made, counts = rows(asyncio.run(agent.run("Who?", qid="q")))
    last = made[0].messages[-1]
    assert (last["content"], last["reasoning_content"], last["trainable"]) == ("Abba", reasoning, True)
    assert counts == {"turns": 1, "trainable_turns": 1}


def test_what_a_real_episode_was_nudged_for_is_not_trained_on() -> None:
    async def search(query: str) -> ToolOutput:
        """Searches."""
        return ToolOutput(content=f"found {query}")

    def calls(*queries: str) -> Generation:
        made = tuple(
            ToolCall(call_id=f"c{n}", name="search", arguments={"query": one}) for n, one in enumerate(queries)
        )
        return Generation(reasoning="t", text="", calls=made, finish="calls")

    silent, answer = Generation(reasoning="Hm.", text=""), Generation(reasoning="", text="Abba", answer="Abba")
    script = ScriptedModel([calls("a"), silent, calls("b", "c"), calls("d"), answer])
    agent = Agent(name="a", model=script, toolset=Toolset([Tool(search)], max_calls=1), limits=Limits(max_turns=3))
    done = asyncio.run(agent.run("Who?", qid="q"))
    made, counts = rows(done, statuses=("forced",))
    said = [message["trainable"] for message in made[0].messages if message["role"] == "assistant"]
    assert said == [True, False, False, False, True]
    assert counts == {
        "turns": 5,
        "trainable_turns": 2,
        "turns_without_call_or_answer": 1,
        "turns_with_calls_not_run": 2,
    }
    subqueries, taken = extract([done], QUESTIONS, ExtractionOptions())
    assert [(one.subqid, one.query, one.reasoning) for one in subqueries] == [
        ("q_turn0", "a", "t"),
        ("q_turn2", "b", ""),
    ]
    assert (taken["calls_not_run"], taken["reasonings_dropped_after_nudge"]) == (2, 1)


def test_arguments_that_could_not_be_read_stay_as_they_were() -> None:
    made, _ = rows(trajectory(turn(0, None), turn(1, text="Abba")))
    assert made[0].messages[2]["tool_calls"][0]["function"]["arguments"] == "{oops"


@pytest.mark.parametrize("finish", ["length", "filtered"])
def test_a_turn_that_was_cut_is_not_shown_but_what_was_said_next_is(finish: str) -> None:
    made, counts = rows(trajectory(turn(0, finish=finish, text="Half an"), turn(1, prompted="Go on.", text="Abba")))
    assert [message["content"] for message in made[0].messages] == ["Search.", "Who?", "Go on.", "Abba"]
    assert counts == {"turns": 2, "trainable_turns": 1, "cut_turns": 1}


def test_a_text_before_a_call_that_is_its_reasoning_is_not_said_twice() -> None:
    made, _ = rows(trajectory(turn(0, {"query": "a"}, text=" Let me see. ", reasoning="Let me see.")))
    assert "reasoning_content" not in made[0].messages[2]


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ({"status": "forced"}, {}, "trajectories_of_other_status"),
        ({"status": "forced"}, {"statuses": ("completed", "forced")}, None),
        ({"qid": "other"}, {}, None),
        ({"qid": "other"}, {"only_correct": True}, "trajectories_of_unknown_questions"),
        ({"answer": "Roxette"}, {"only_correct": True}, "trajectories_with_other_answer"),
        ({"answer": "Roxette"}, {}, None),
        ({"answer": "it's ABBA"}, {"only_correct": True}, None),
        ({"prompt": ()}, {}, None),
        ({"prompt": (), "qid": "other", "question": "Who?"}, {}, None),
        ({"prompt": (), "qid": "other"}, {}, "trajectories_without_prompt"),
        ({"turns": ()}, {}, "trajectories_without_trainable_turns"),
        ({"turns": (turn(0, None),)}, {}, "trajectories_without_trainable_turns"),
    ],
)
def test_which_trajectories_are_exported(given: dict[str, Any], options: dict[str, Any], reason: str | None) -> None:
    turns = given.pop("turns", (turn(0, text="Abba"),))
    made, counts = rows(trajectory(*turns, **given), **options)
    assert counts == ({"turns": 1, "trainable_turns": 1} if reason is None else {reason: 1})
    if reason is None:
        assert [message["content"] for message in made[0].messages][-2:] == ["Who?", "Abba"]


def write(path: Path, values: list[Any]) -> str:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return str(path)


def test_the_program_reads_rollouts_and_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Artifact(tmp_path / "run", "trajectories", Section(), inputs={}) as artifact:
        artifact.write("trajectories.jsonl", [trajectory(turn(0, text="Abba")), trajectory(qid="p", status="forced")])
        artifact.finish({})
    messages = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": "<think>Hm.</think>Oslo"}]
    more = write(tmp_path / "more.jsonl", [{"qid": "r", "status": "completed", "messages": messages}])
    arguments = ["synth", "export", "--trajectories", str(tmp_path / "run"), more, "--out", str(tmp_path / "sft")]
    run(arguments)
    lines = [json.loads(line) for line in (tmp_path / "sft/sft.jsonl").read_text("utf-8").splitlines()]
    assert [(line["qid"], line["messages"][-1]["content"], line["tools"]) for line in lines] == [
        ("q", "Abba", []),
        ("r", "Oslo", []),
    ]
    assert lines[1]["messages"][-1]["reasoning_content"] == "Hm."
    manifest = json.loads((tmp_path / "sft/manifest.json").read_text("utf-8"))
    assert manifest["kind"] == "sft"
    assert manifest["report"]["trajectories_by_status"] == {"completed": 2, "forced": 1}
    assert manifest["report"]["trajectories_of_other_status"] == 1
    out = capsys.readouterr().out
    assert "2 conversations from 3 trajectories" in out and "trajectories of other status: 1" in out
    run(arguments)
    assert "complete already" in capsys.readouterr().out


def test_only_correct_needs_the_questions(tmp_path: Path) -> None:
    episode = {"qid": "q", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "abba"}]}
    runs = write(tmp_path / "runs.jsonl", [{**episode, "status": "completed"}])
    arguments = ["synth", "export", "--trajectories", runs, "--only-correct", "--out", str(tmp_path / "sft")]
    with pytest.raises(ConfigError, match="questions: missing; only_correct compares"):
        run(arguments)
    questions = write(tmp_path / "questions.jsonl", [{"qid": "q", "question": "?", "answer": "ABBA"}])
    run([*arguments, "--questions", questions])
    assert len((tmp_path / "sft/sft.jsonl").read_text("utf-8").splitlines()) == 1
