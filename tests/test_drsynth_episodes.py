import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from agentir.chat.model import Generation
from agentir.drsynth.episodes import EPISODES, FINISHED, EpisodeStore
from agentir.errors import ArtifactError
from agentir.records import Trajectory, Usage

TOOK = Usage(num_calls=1, prompt_tokens=7)


def record(store: EpisodeStore, qid: str) -> None:
    async def make() -> Generation:
        return Generation(reasoning="", text="x", usage=TOOK)

    journal = store.journal(qid)
    asyncio.run(journal.step("generation", TypeAdapter(Generation), make))
    journal.flush()


def test_what_episodes_took_is_counted_once_wherever_a_kill_came(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path) as store:
        for qid in ("done", "under way"):
            record(store, qid)
        store.finish(Trajectory(qid="done", agent="a", turns=(), answer="x", status="completed", usage=TOOK))
        record(store, "done")  # as if the kill had come before the journal was removed
    with EpisodeStore(tmp_path) as store:
        assert (list(store.finished), store.open_usage, store.spent) == (["done"], TOOK, TOOK + TOOK)
        assert store.journal("under way").num_recorded == 1
        assert store.journal("done").num_recorded == 0


def finished(folder: Path, num: int = 5) -> bytes:
    """A store with some finished episodes; returns its long lines."""
    with EpisodeStore(folder) as store:
        for number in range(num):
            store.finish(
                Trajectory(qid=f"q{number}", agent="a", turns=(), answer="x" * number, status="completed", usage=TOOK)
            )
    return (folder / EPISODES).read_bytes()


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda lines: [*lines, b"garbage\n"], []),
        (lambda lines: [*lines, b"{}\n"], []),
        (lambda lines: [*lines[:2], b"\0" * 30 + lines[2][30:], *lines[3:]], ["q2"]),
        (lambda lines: [*lines[:4], lines[4][:-30]], ["q4"]),
        (lambda lines: lines[:3], ["q3", "q4"]),
        (lambda lines: [lines[1], lines[0], *lines[2:]], []),
    ],
    ids=["garbage at the end", "no episode at the end", "zeroed", "cut short", "lines missing", "swapped"],
)
def test_damaged_episodes_cost_only_themselves(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], lost: list[str]
) -> None:
    lines = finished(tmp_path).splitlines(keepends=True)
    (tmp_path / EPISODES).write_bytes(b"".join(damage(lines)))
    qids = [f"q{number}" for number in range(5)]
    for _ in range(2):
        with EpisodeStore(tmp_path) as store:
            try:
                found = list(store.in_order(qids))
                break
            except ArtifactError as error:  # damage behind the short lines' back shows when the lines are read
                assert "run the same command again" in str(error)
    assert sorted(set(qids) - set(store.finished)) == lost
    assert [json.loads(line)["qid"] for line in found] == [qid for qid in qids if qid not in lost]
    assert found == [line for line, qid in zip(lines, qids, strict=True) if qid not in lost]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[1:],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: lines[:3],
        lambda lines: [*lines[:1], b"garbage\n", *lines[2:]],
        lambda lines: [],
    ],
    ids=["first missing", "one missing", "last missing", "garbage", "empty"],
)
def test_damaged_short_lines_are_made_anew(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    finished(tmp_path)
    whole = (tmp_path / FINISHED).read_bytes()
    (tmp_path / FINISHED).write_bytes(b"".join(damage(whole.splitlines(keepends=True))))
    with EpisodeStore(tmp_path) as store:
        assert sorted(store.finished) == [f"q{number}" for number in range(5)] and store.num_damaged == 0
    assert (tmp_path / FINISHED).read_bytes() == whole
