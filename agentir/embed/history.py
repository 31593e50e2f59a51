"""What an episode had searched for before each of its searches, for encoders that read it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentir.artifacts import read_manifest
from agentir.errors import InputError
from agentir.jsonl import Rejects, read_records
from agentir.records import PastSearch, SearchQuery, SubQuery


class Histories:
    """The earlier searches of each sub-query's episode.

    The sub-queries of one question are one episode, as `agentir synth extract` makes them. Searches of one turn were sent
    in parallel, so none is the history of another; what was not extracted (a failed or blank search) is missing here too.

    Args:
        subqueries: all of the episodes, in any order.
        where: where they come from, for error texts.

    Raises:
        InputError: a sub-query is listed twice, so that several episodes of one question must be mixed.
    """

    def __init__(self, subqueries: Iterable[SubQuery], where: str | Path = "the sub-queries") -> None:
        self._where = where
        episodes: dict[str, dict[tuple[int, int], PastSearch]] = {}
        for subquery in subqueries:
            episode = episodes.setdefault(subquery.qid, {})
            if (subquery.turn, subquery.call) in episode:
                raise InputError(
                    f"{where}: expected each sub-query once, found {subquery.subqid!r} again; give the sub-queries of "
                    "one `agentir synth extract`, which takes one episode a question"
                )
            search = PastSearch(query=subquery.query, reasoning=subquery.reasoning)
            episode[subquery.turn, subquery.call] = search
        self._episodes = {
            qid: dict(sorted(episode.items(), key=lambda item: item[0])) for qid, episode in episodes.items()
        }

    @classmethod
    def read(cls, path: Path, rejects: Rejects) -> Histories:
        """Those of a folder that `agentir synth extract` wrote, or of a file of such sub-queries.

        Raises:
            ArtifactError: the folder is no finished artifact of sub-queries.
            InputError: there is no such file, or a sub-query is listed twice.
        """
        if path.is_dir():
            read_manifest(path, "subqueries")
            path = path / "subqueries.jsonl"
        return cls(read_records(path, SubQuery, rejects), path)

    def before(self, subquery: SubQuery) -> tuple[PastSearch, ...]:
        """What was searched for in earlier turns, oldest first.

        Raises:
            InputError: the sub-query is not listed, or with another query: these are other episodes.
        """
        episode = self._episodes.get(subquery.qid, {})
        listed = episode.get((subquery.turn, subquery.call))
        if listed is None or listed.query != subquery.query:
            found = "no such sub-query" if listed is None else f"the query {listed.query!r}"
            raise InputError(
                f"{self._where}: sub-query {subquery.subqid!r}: expected the query {subquery.query!r}, found {found}; "
                "give the sub-queries that the examples were made of"
            )
        return tuple(search for (turn, _), search in episode.items() if turn < subquery.turn)


def search_query(subquery: SubQuery, histories: Histories | None = None) -> SearchQuery:
    """A sub-query as an encoder is given it; without histories, its own is left empty."""
    return SearchQuery(
        query=subquery.query,
        reasoning=subquery.reasoning,
        question=subquery.question,
        history=() if histories is None else histories.before(subquery),
    )
