import json
from pathlib import Path
from typing import Any

import pytest

from agentir.artifacts import Artifact
from agentir.config import Section
from agentir.drsynth.trajectories import has_accepted_answer, load_trajectories
from agentir.errors import ArtifactError, InputError
from agentir.jsonl import Rejects
from agentir.records import Message, QAItem, Trajectory, Turn

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def artifact(folder: Path, *trajectories: Trajectory, kind: str = "trajectories") -> Path:
    with Artifact(folder, kind, Section(), inputs={}) as made:
        made.write("trajectories.jsonl", trajectories)
        made.finish({})
    return folder


def trajectory(qid: str, answer: str = "") -> Trajectory:
    turn = Turn(index=0, reasoning="r", text="t", calls=(), results=(), finish="stop", prompted="p")
    return Trajectory(qid=qid, agent="a", turns=(turn,), answer=answer, status="completed", question="?")


def test_artifacts_and_files_are_read_in_order(tmp_path: Path) -> None:
    first, second = trajectory("a"), trajectory("b")
    rows = [{"qid": "c", "messages": [{"role": "user", "content": "?"}]}]
    paths = [artifact(tmp_path / "run", first, second), write(tmp_path / "more.jsonl", rows)]
    rejects = Rejects()
    loaded = load_trajectories(paths, rejects)
    assert loaded[:2] == [first, second]
    assert ([one.qid for one in loaded], rejects.items) == (["a", "b", "c"], [])


def test_a_question_has_one_episode_over_all_places(tmp_path: Path) -> None:
    paths = [artifact(tmp_path / "one", trajectory("a")), artifact(tmp_path / "two", trajectory("a"))]
    with pytest.raises(InputError, match=r"two: expected episodes of other questions than .*one, found 'a' again"):
        load_trajectories(paths, Rejects())


def test_a_folder_must_be_a_finished_artifact_of_trajectories(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a finished trajectories artifact"):
        load_trajectories([tmp_path], Rejects())
    with pytest.raises(ArtifactError, match="expected a trajectories artifact, found rankings"):
        load_trajectories([artifact(tmp_path / "other", kind="rankings")], Rejects())


def test_transcripts_keep_what_the_agent_was_told_and_offered(tmp_path: Path) -> None:
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {"role": "assistant", "content": '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'},
        {"role": "user", "content": " <tool_response>found</tool_response>"},
        {"role": "assistant", "content": "Hm."},
        {"role": "user", "content": "Answer now."},
        {"role": "assistant", "content": "Abba"},
        {"role": "user", "content": "Thanks."},
    ]
    rows = [
        {"qid": "bad", "messages": "none"},
        {"qid": "a", "messages": 3},
        {"qid": "a", "messages": messages, "tools": [*TOOLS, None]},
        {"qid": "b", "messages": [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}]},
        [1],
        {"qid": "c", "messages": [{"role": "user", "content": "?"}], "tools": "none"},
    ]
    rejects = Rejects(set_aside=True)
    first, last = load_trajectories([write(tmp_path / "runs.jsonl", rows)], rejects)
    assert [item.line for item in rejects.items] == [1, 2, 4, 5]
    assert first.prompt == (Message(role="system", content="Be short."), Message(role="user", content="Who?"))
    assert [turn.prompted for turn in first.turns] == ["", "", "Answer now."]
    assert first.turns[0].results[0].content == "found"
    assert (first.answer, list(first.tools)) == ("Abba", TOOLS)
    assert (last.qid, last.prompt, last.turns, last.tools) == ("c", (Message(role="user", content="?"),), (), ())


@pytest.mark.parametrize(
    ("answer", "accepted", "matches"),
    [
        ("It is ＡＢＢＡ!", ("x", "abba"), True),
        ("Abbas", ("abba",), False),
        ("", ("abba",), False),
        ("anything", (), False),
        ("anything", ("...",), False),
    ],
)
def test_an_answer_matches_by_its_words(answer: str, accepted: tuple[str, ...], matches: bool) -> None:
    item = QAItem(qid="a", question="?", answers=accepted)
    assert has_accepted_answer(trajectory("a", answer), item) == matches
