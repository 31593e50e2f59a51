"""The folder of journals of work under way."""

import asyncio
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from agentir.agent.journal import JournalFolder
from agentir.chat.model import Generation
from agentir.errors import InputError
from agentir.records import Usage

TOOK = Usage(num_calls=1, num_attempts=2, prompt_tokens=7, completion_tokens=3, cost=0.5)


def record(journals: JournalFolder, key: str, *kinds: str) -> None:
    async def make() -> Generation:
        return Generation(reasoning="", text="x", usage=TOOK)

    async def steps() -> None:
        journal = journals.open(key)
        for kind in kinds:
            await journal.step(kind, TypeAdapter(Generation), make)
        journal.flush()

    asyncio.run(steps())


def test_usage_is_that_of_the_generations_in_all_journals(tmp_path: Path) -> None:
    journals = JournalFolder(tmp_path / "open")
    assert journals.usage() == Usage() and not (tmp_path / "open").exists()
    record(journals, "../a b", "generation", "results")
    record(journals, "c", "generation", "generation")
    assert journals.usage() == TOOK + TOOK + TOOK
    assert journals.open("c").num_recorded == 2 and journals.open("new").num_recorded == 0
    journals.remove("c")
    journals.remove("never there")
    assert JournalFolder(tmp_path / "open").usage() == TOOK
    journals.clear()
    journals.clear()
    assert journals.usage() == Usage() and not list(tmp_path.iterdir())


def test_a_torn_line_is_cut_and_other_damage_is_named(tmp_path: Path) -> None:
    journals = JournalFolder(tmp_path)
    record(journals, "a", "generation")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-9])
    assert journals.usage() == TOOK and path.read_bytes() == whole
    path.write_bytes(b"\0\0\n" + whole)
    with pytest.raises(InputError, match=rf"{path.name}:1: "):
        journals.usage()
