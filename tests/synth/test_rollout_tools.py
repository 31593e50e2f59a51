"""`agentir synth rollout` with each of its tools, over an index and over a server, and what is extracted from it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.cli import run as run_program
from agentir.jsonl import read_records, write_jsonl
from agentir.records import Document, SubQuery, Trajectory
from agentir.search.builder import build_index

Start = Callable[[Callable[[Seen], Reply]], ScriptedServer]
DOCUMENTS = [
    Document(docid="d1", title="The old mill", text="The old mill stands in Bergen. " + "It grinds rye. " * 10),
    Document(docid="d2", title="The old bridge", text="The old bridge was built in 1702."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its index, and a question."""
    folder = tmp_path_factory.mktemp("rollout-tools")
    write_jsonl(folder / "corpus.jsonl", DOCUMENTS)
    build_index(folder / "index", folder / "corpus.jsonl")
    write_jsonl(folder / "questions.jsonl", [{"qid": "q", "question": "Where is the mill?", "answer": "Bergen"}])
    return folder


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real `agentir index serve`."""
    errors = tmp_path_factory.mktemp("live") / "stderr.txt"
    command = [sys.executable, "-m", "agentir", "index", "serve", "--index", str(folder / "index"), "--port", "0"]
    with (
        errors.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            url = next((found[1] for line in lines if (found := re.match(r"MCP +(http\S+)/mcp$", line))), None)
            assert url is not None, errors.read_text()
            yield url
        finally:
            process.kill()


def playing(*steps: Any) -> Callable[[Seen], Reply]:
    """Makes the calls of each step (name, arguments) one after the other, thinking its number, and then answers."""

    def script(seen: Seen) -> Reply:
        step = sum(message["role"] == "assistant" for message in seen.body["messages"])
        if step == len(steps):
            return Reply(completion("Bergen", reasoning="It is settled."))
        calls = [(name, json.dumps(arguments)) for name, arguments in steps[step]]
        return Reply(completion(reasoning=f"Step {step}.", calls=calls))

    return script


def rollout(folder: Path, server: ScriptedServer, out: Path, *more: str) -> Trajectory:
    done = subprocess.run(
        [
            sys.executable, "-m", "agentir", "synth", "rollout", "--questions", str(folder / "questions.jsonl"),
            "--out", str(out), "--model.name", "m", "--model.base-url", server.url, *more,
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (trajectory,) = read_records(out / "trajectories.jsonl", Trajectory)
    assert (trajectory.status, trajectory.answer) == ("completed", "Bergen")
    return trajectory


def offered(server: ScriptedServer) -> list[tuple[str, dict[str, str]]]:
    """The tools in the first request: name and types of the parameters."""
    functions = [tool["function"] for tool in server.seen[0].body["tools"]]
    return [
        (one["name"], {name: value["type"] for name, value in one["parameters"]["properties"].items()})
        for one in functions
    ]


def extracted(folder: Path, out: Path) -> list[tuple[str, str, str]]:
    arguments = ["--trajectories", str(out), "--questions", str(folder / "questions.jsonl")]
    run_program(["synth", "extract", *arguments, "--out", str(out.parent / "subqueries")])
    return [
        (one.subqid, one.query, one.reasoning)
        for one in read_records(out.parent / "subqueries" / "subqueries.jsonl", SubQuery)
    ]


def test_search_and_visit(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(
        playing(
            [("search", {"query": "old mill"})],
            [("visit", {"docid": "d1"})],
            [("visit", {"docid": "d7"})],
            [("search", {"query": "old bridge"})],
        )
    )
    more = ("--index", str(folder / "index"), "--tools", "search+visit", "--visit-chars", "100", "--snippet-words", "4")
    trajectory = rollout(folder, server, tmp_path / "out", *more)
    assert offered(server) == [("search", {"query": "string"}), ("visit", {"docid": "string"})]
    contents = [result.content for turn in trajectory.turns for result in turn.results]
    assert contents[0] == (
        "A search for 'old mill' found 2 results:\n\n1. The old mill (docid: d1)\nThe old mill stands …\n\n"
        "2. The old bridge (docid: d2)\nThe old bridge was …"
    )
    assert contents[1] == (
        f"The old mill\n\n{DOCUMENTS[0].text[:100]}\n[... cut: 100 of {len(DOCUMENTS[0].text)} characters]"
    )
    assert contents[2] == "Error: there is no document 'd7'; give an id exactly as a search result has it"
    told = [message["content"] for message in server.seen[-1].body["messages"] if message["role"] == "tool"]
    assert told == contents
    assert extracted(folder, tmp_path / "out") == [
        ("q_turn0", "old mill", "Step 0."),
        ("q_turn3", "old bridge", ""),  # it follows a failed call
    ]


def test_several_queries_a_search(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(playing([("search", {"query": ["old mill", "zebra"]})], [("search", {"query": "bridge"})]))
    more = ("--index", str(folder / "index"), "--several-queries", "true", "--k", "1", "--results", "json")
    trajectory = rollout(folder, server, tmp_path / "out", *more)
    assert offered(server) == [("search", {"query": "array"})]
    first, second = (turn.results[0] for turn in trajectory.turns[:2])
    found, nothing = first.content.split("\n=======\n")
    assert [row["docid"] for row in json.loads(found)] == ["d1"] and json.loads(nothing) == []
    assert (first.docids, second.docids) == (("d1",), ("d2",))
    assert extracted(folder, tmp_path / "out") == [
        ("q_turn0", "old mill", "Step 0."),
        ("q_turn0.1", "zebra", "Step 0."),
        ("q_turn1", "bridge", "Step 1."),
    ]


def test_calls_over_the_cap_are_no_sub_queries(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(playing([("search", {"query": word}) for word in ("mill", "bridge", "rye")]))
    trajectory = rollout(folder, server, tmp_path / "out", "--index", str(folder / "index"))
    assert [result.run for result in trajectory.turns[0].results] == [True, False, False]
    assert extracted(folder, tmp_path / "out") == [("q_turn0", "mill", "Step 0.")]
    report = json.loads((tmp_path / "subqueries" / "manifest.json").read_text(encoding="utf-8"))["report"]
    assert report["calls_not_run"] == 2


@pytest.mark.parametrize(("more", "heard"), [((), ["", ""]), (("--pass-reasoning", "true"), ["Step 0.", "Step 1."])])
def test_the_reasoning_goes_to_the_search_where_that_is_asked_for(
    folder: Path, chat_server: Start, tmp_path: Path, more: tuple[str, ...], heard: list[str]
) -> None:
    response = {
        "results": [{"docid": "d1", "score": 1.0, "title": "", "snippet": "s", "url": ""}],
        "index_version": "v",
        "reasoning_used": True,
        "reasoning_truncated": False,
        "reasoning": "",
    }
    search = chat_server(lambda seen: Reply(response))
    server = chat_server(playing([("search", {"query": "a"})], [("search", {"query": "b"})]))
    rollout(folder, server, tmp_path / "out", "--server", search.url.removesuffix("/v1"), *more)
    assert [(seen.path, seen.body) for seen in search.seen[1:]] == [  # the first asks for the index version
        ("/v1/search", {"query": query, "reasoning": reasoning, "k": 5})
        for query, reasoning in zip("ab", heard, strict=True)
    ]
    assert "reasoning" not in json.dumps(server.seen[0].body["tools"]), "the model does not see it"


def test_a_live_server_gives_what_its_index_gives(folder: Path, live: str, chat_server: Start, tmp_path: Path) -> None:
    steps = [("search", {"query": "old mill"})], [("visit", {"docid": "d2"})], [("search", {"query": "zebra"})]
    more = ("--tools", "search+visit", "--pass-reasoning", "true")
    by_server = rollout(folder, chat_server(playing(*steps)), tmp_path / "server", "--server", live, *more)
    by_index = rollout(
        folder, chat_server(playing(*steps)), tmp_path / "index", "--index", str(folder / "index"), *more
    )
    results = [turn.results for turn in by_server.turns]
    assert results == [turn.results for turn in by_index.turns]
    assert results[0][0].docids == ("d1", "d2") and results[1][0].content == "The old bridge\n\n" + DOCUMENTS[1].text
