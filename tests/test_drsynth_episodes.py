import asyncio
from pathlib import Path

from pydantic import TypeAdapter

from agentir.chat.model import Generation
from agentir.drsynth.episodes import EpisodeStore
from agentir.records import Trajectory, Usage

TOOK = Usage(num_calls=1, prompt_tokens=7)


def record(store: EpisodeStore, qid: str) -> None:
    async def make() -> Generation:
        return Generation(reasoning="", text="x", usage=TOOK)

    journal = store.journal(qid)
    asyncio.run(journal.step("generation", TypeAdapter(Generation), make))
    journal.close()


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
