"""What an episode had searched for before."""

from pathlib import Path

import pytest

from agentir.embed.history import Histories, search_query
from agentir.errors import AgentirError, ArtifactError, InputError
from agentir.jsonl import Rejects, write_jsonl
from agentir.records import PastSearch, SearchQuery, SubQuery


def subquery(qid: str, turn: int, call: int = 0, query: str = "") -> SubQuery:
    name = f"{qid}{turn}.{call}"
    return SubQuery(qid=qid, turn=turn, call=call, question=f"{qid}?", reasoning=f"r {name}", query=query or name)


def past(*names: str) -> tuple[PastSearch, ...]:
    return tuple(PastSearch(query=name, reasoning=f"r {name}") for name in names)


EPISODES = [
    subquery("a", 10),
    subquery("b", 0),
    subquery("a", 0),
    subquery("a", 2, 1),
    subquery("b", 7),
    subquery("a", 2),
]


@pytest.mark.parametrize(
    ("asked", "before"),
    [
        (subquery("a", 0), ()),
        (subquery("a", 2), ("a0.0",)),
        (subquery("a", 2, 1), ("a0.0",)),
        (subquery("a", 10), ("a0.0", "a2.0", "a2.1")),
        (subquery("b", 0), ()),
        (subquery("b", 7), ("b0.0",)),
    ],
)
def test_history_is_the_earlier_turns_of_the_question_oldest_first(asked: SubQuery, before: tuple[str, ...]) -> None:
    assert Histories(EPISODES).before(asked) == past(*before)
    assert search_query(asked, Histories(EPISODES)) == SearchQuery(
        query=asked.query, reasoning=asked.reasoning, question=asked.question, history=past(*before)
    )
    assert search_query(asked).history == ()


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (subquery("c", 0), "'c_turn0': expected the query 'c0.0', found no such sub-query"),
        (subquery("a", 1), "'a_turn1': expected the query 'a1.0', found no such sub-query"),
        (subquery("a", 2, 1, "other"), "'a_turn2.1': expected the query 'other', found the query 'a2.1'"),
    ],
)
def test_episodes_of_other_examples_are_refused(asked: SubQuery, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Histories(EPISODES).before(asked)


def test_several_episodes_of_a_question_are_refused() -> None:
    with pytest.raises(InputError, match="expected each sub-query once, found 'a_turn2' again"):
        Histories([*EPISODES, subquery("a", 2, query="of another episode")])


def test_histories_are_read_from_a_file_and_from_a_finished_folder_only(tmp_path: Path) -> None:
    path = tmp_path / "subqueries.jsonl"
    write_jsonl(path, EPISODES)
    rejects = Rejects(set_aside=True)
    assert Histories.read(path, rejects).before(subquery("b", 7)) == past("b0.0")
    with pytest.raises(ArtifactError, match="expected a finished subqueries artifact"):
        Histories.read(tmp_path, rejects)
    with pytest.raises(AgentirError, match="no such file"):
        Histories.read(tmp_path / "elsewhere.jsonl", rejects)
    assert not rejects.items
    path.write_text('{"qid": "a"}\n')
    Histories.read(path, rejects)
    assert rejects.counts() == {str(path): 1}
