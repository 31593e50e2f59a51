"""`agentir synth label` with a model behind a real HTTP server."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.agent.journal import JournalFolder
from agentir.artifacts import UNFINISHED, read_manifest
from agentir.chat.model import Generation
from agentir.cli import run
from agentir.drsynth.label_file import label_key
from agentir.drsynth.oracle import LabelOutcome
from agentir.embed.load import load_encoder
from agentir.errors import AgentirError, ConfigError
from agentir.jsonl import read_records
from agentir.records import Ranking, Usage
from agentir.search.builder import build_index

Start = Callable[[Callable[[Seen], Reply]], ScriptedServer]
NUM = 24
TOWNS = ["Oslo", "Bergen", "Halmstad", "Stockholm", "Turku", "Tromso", "Uppsala", "Lund", "Odense", "Aarhus"]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sub-queries "town one coast", each of a question whose gold document is one of ten towns."""
    corpus = [{"docid": town, "text": f"{town} is a town on the coast, number {n}."} for n, town in enumerate(TOWNS)]
    write(tmp_path / "corpus.jsonl", corpus)
    questions = [
        {"qid": f"q{n}", "question": f"Which town ({n})?", "answer": TOWNS[n % 10], "gold_docids": [TOWNS[n % 10]]}
        for n in range(NUM)
    ]
    write(tmp_path / "questions.jsonl", [*questions, {"qid": "unanswered", "question": "Which?"}])
    call = {"name": "search", "arguments": json.dumps({"query": "town coast"})}
    episodes = [
        {
            "qid": question["qid"],
            "messages": [
                {"role": "assistant", "reasoning_content": "So?", "tool_calls": [{"id": "0", "function": call}]},
                {"role": "tool", "tool_call_id": "0", "content": "[]"},
                {"role": "assistant", "content": "x"},
            ],
        }
        for question in [*questions, {"qid": "unanswered"}]
    ]
    write(tmp_path / "runs.jsonl", episodes)
    build_index(tmp_path / "index", tmp_path / "corpus.jsonl")
    given = ["--trajectories", str(tmp_path / "runs.jsonl"), "--questions", str(tmp_path / "questions.jsonl")]
    run(["synth", "extract", *given, "--out", str(tmp_path / "subqueries")])
    return tmp_path


def label(folder: Path, server: ScriptedServer, out: str, *options: str) -> list[str]:
    return [
        *("synth", "label", "--subqueries", str(folder / "subqueries"), "--index", str(folder / "index")),
        *("--questions", str(folder / "questions.jsonl"), "--out", str(folder / out), "--depth", "6"),
        *("--model.name", "m", "--model.base-url", server.url, "--model.max-retries", "0", *options),
    ]


def question(seen: Seen) -> int:
    return int(re.search(r"Which town \((\d+)\)", seen.body["messages"][1]["content"])[1])  # type: ignore[index]


def passages(seen: Seen) -> list[str]:
    return re.findall(r"^\[\d+\] (\w+) is a town", seen.body["messages"][1]["content"], re.MULTILINE)


def rank(seen: Seen) -> list[int]:
    """The answer first, then the towns by name."""
    shown, answer = passages(seen), TOWNS[question(seen) % 10]
    return sorted(range(1, len(shown) + 1), key=lambda number: (shown[number - 1] != answer, shown[number - 1]))


def brackets(seen: Seen) -> Reply:
    return Reply(completion(" > ".join(f"[{number}]" for number in rank(seen))))


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_manifest(folder, "rankings")["report"]
    return found


def test_a_model_ranks_the_candidates_of_every_sub_query(
    data: Path, chat_server: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = chat_server(brackets)
    run(label(data, server, "rankings", "--model.prices.prompt", "1000"))
    rankings = list(read_records(data / "rankings" / "rankings.jsonl", Ranking))
    assert [ranking.subquery.subqid for ranking in rankings] == [f"q{n}_turn0" for n in range(NUM)]
    assert all(ranking.order[0] == TOWNS[n % 10] for n, ranking in enumerate(rankings))
    assert all(ranking.order[1:] == tuple(sorted(ranking.order[1:])) for ranking in rankings)
    assert len({[one.source for one in ranking.candidates].index("gold") for ranking in rankings}) > 1
    found = report(data / "rankings")
    assert {name: found[name] for name in ("subqueries", "rankings", "rerank_failed", "requests", "votes")} == {
        "subqueries": NUM + 1,
        "rankings": NUM,
        "rerank_failed": 0,
        "requests": NUM,
        "votes": NUM,
    }
    assert (found["of_questions_without_answer"], found["subqueries_without_answer"]) == (1, 0)
    assert (found["usage"]["prompt_tokens"], found["usage"]["cost"]) == (10 * NUM, pytest.approx(0.01 * NUM))
    assert found["mean_agreement"] is None
    printed = capsys.readouterr().out
    assert f"{NUM} rankings of {NUM + 1} sub-queries" in printed and "of questions without answer: 1" in printed
    run(label(data, server, "rankings"))
    assert "complete already" in capsys.readouterr().out
    assert len(server.seen) == NUM


def test_votes_windows_and_json_answers(data: Path, chat_server: Start) -> None:
    def as_json(seen: Seen) -> Reply:
        schema = seen.body["response_format"]["json_schema"]["schema"]
        assert schema["properties"]["ranking"]["maxItems"] == len(passages(seen)) <= 4
        return Reply(completion(json.dumps({"ranking": rank(seen)})))

    server = chat_server(as_json)
    run(label(data, server, "rankings", "--form", "json", "--window", "4", "--step", "2", "--votes", "2"))
    found = report(data / "rankings")
    assert (found["rankings"], found["votes"], found["requests"]) == (NUM, 2 * NUM, 4 * NUM)
    assert 0 < found["mean_agreement"] <= 1
    rankings = list(read_records(data / "rankings" / "rankings.jsonl", Ranking))
    assert all(ranking.order[0] == TOWNS[n % 10] and len(ranking.votes) == 2 for n, ranking in enumerate(rankings))


def test_what_the_server_gave_no_answer_for_is_asked_for_again_or_left_out(
    data: Path, chat_server: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"broken": True}

    def reply(seen: Seen) -> Reply:
        if state["broken"] and question(seen) % 8 == 1:
            return Reply({"error": {"message": "out of order"}}, 500)
        if question(seen) == 2:
            return Reply({"error": {"message": "context_length_exceeded"}}, 400)
        return Reply(completion("I cannot.")) if question(seen) == 3 else brackets(seen)

    server = chat_server(reply)
    with pytest.raises(
        AgentirError, match=r"unfinished: the model gave no answer for 3 of 24 sub-queries; run the same"
    ):
        run(label(data, server, "rankings"))
    assert "failed: 3 (server_error; the first: m: status 500: " in capsys.readouterr().out
    assert (data / "rankings" / UNFINISHED).exists()

    before = len(server.seen)
    run(label(data, server, "rankings", "--on-failure", "leave_out"))
    assert sorted(map(question, server.seen[before:])) == [1, 9, 17]
    found = report(data / "rankings")
    assert (found["failed"], found["subqueries_without_answer"]) == ({"server_error": 3}, 3)
    assert found["without_answer"] == ["q1_turn0", "q9_turn0", "q17_turn0"]
    assert (found["rankings"], found["rerank_failed"]) == (NUM - 5, 2)
    assert (found["context_overflow"], found["with_unparsable_votes"], found["dropped_votes"]) == (1, 1, 2)

    with pytest.raises(AgentirError, match="unfinished"):
        run(label(data, server, "again"))
    state["broken"], before = False, len(server.seen)
    run(label(data, server, "again"))
    assert sorted(map(question, server.seen[before:])) == [1, 9, 17]
    assert report(data / "again")["rankings"] == NUM - 2


def test_a_budget_stops_the_run_until_it_is_raised(data: Path, chat_server: Start) -> None:
    server = chat_server(brackets)
    with pytest.raises(AgentirError, match="unfinished: budget used up: 10 of max_calls 10; raise it and run the same"):
        run(label(data, server, "rankings", "--model.budget.max-calls", "10"))
    with pytest.raises(AgentirError, match="used up: 15 of max_calls 15"):
        run(label(data, server, "rankings", "--model.budget.max-calls", "15", "--on-failure", "leave_out"))
    run(label(data, server, "rankings", "--model.budget.max-calls", "24"))
    assert Counter(map(question, server.seen)) == Counter(range(NUM))


def test_a_killed_run_goes_on_and_pays_for_nothing_twice(data: Path, chat_server: Start) -> None:
    server = chat_server(brackets)
    run(label(data, server, "whole"))

    slow = chat_server(lambda seen: Reply(brackets(seen).body, delay=0.05))
    command = [sys.executable, "-m", "agentir", *label(data, slow, "killed", "--model.concurrency", "2")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(slow.seen) < 8 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    lines = (data / "killed" / "labels.jsonl").read_bytes().splitlines(keepends=True)
    kept = {json.loads(line)["ranking"]["subquery"]["qid"] for line in lines if line.endswith(b"\n")}
    assert len(kept) >= 5

    before = len(server.seen)
    run(label(data, server, "killed"))
    assert Counter(f"q{question(seen)}" for seen in server.seen[before:]) == Counter(
        {f"q{n}": 1 for n in range(NUM) if f"q{n}" not in kept}
    )
    whole, killed = ((data / name / "rankings.jsonl").read_bytes() for name in ("whole", "killed"))
    assert killed == whole


IN_PARTS = ("--votes", "2", "--window", "4")
"""Four requests a sub-query."""


def bodies(server: ScriptedServer) -> Counter[str]:
    return Counter(json.dumps(seen.body) for seen in server.seen)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_killed_between_the_answers_for_a_sub_query_only_the_calls_in_flight_are_asked_again(
    data: Path, chat_server: Start
) -> None:
    whole = chat_server(brackets)
    run(label(data, whole, "whole", *IN_PARTS))
    assert len(whole.seen) == 4 * NUM
    slow = chat_server(lambda seen: Reply(brackets(seen).body, delay=0.1))
    command = [sys.executable, "-m", "agentir", *label(data, slow, "killed", *IN_PARTS, "--model.concurrency", "2")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    rng, num_kills, num_resumed = random.Random(3), 0, 0
    while num_kills < 5:
        before = len(slow.seen)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(slow.seen) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        num_kills += 1
        num_resumed += any(path.stat().st_size for path in (data / "killed" / "open").iterdir())
    assert num_resumed, "some kill came between the answers for a sub-query"
    run(label(data, slow, "killed", *IN_PARTS))
    assert (data / "killed" / "rankings.jsonl").read_bytes() == (data / "whole" / "rankings.jsonl").read_bytes()
    assert bodies(slow) >= bodies(whole) and bodies(slow).keys() == bodies(whole).keys()
    assert (bodies(slow) - bodies(whole)).total() <= 2 * num_kills
    assert report(data / "killed")["requests"] == 4 * NUM and report(data / "killed")["usage"]["num_calls"] == 4 * NUM
    assert (
        files(data / "killed") == files(data / "whole") == [".lock", "labels.jsonl", "manifest.json", "rankings.jsonl"]
    )


def test_after_a_server_error_in_a_sub_query_only_the_rest_of_it_is_asked_for(data: Path, chat_server: Start) -> None:
    asked, broken = Counter[int](), True

    def reply(seen: Seen) -> Reply:
        asked[question(seen)] += 1
        return (
            Reply({"error": "down"}, 500) if broken and asked[question(seen)] > question(seen) % 5 else brackets(seen)
        )

    server = chat_server(reply)
    with pytest.raises(AgentirError, match="no answer for 20 of 24 sub-queries"):
        run(label(data, server, "rankings", *IN_PARTS))
    broken, before = False, len(server.seen)
    run(label(data, server, "rankings", *IN_PARTS))
    rest = Counter(map(question, server.seen[before:]))
    assert rest == Counter({number: 4 - number % 5 for number in range(NUM) if number % 5 < 4})
    assert report(data / "rankings")["usage"]["num_calls"] == 4 * NUM
    (data / "rankings" / "open").mkdir()
    run(label(data, server, "rankings", *IN_PARTS))
    assert not (data / "rankings" / "open").exists(), "a kill may have come just before it was removed"


def test_answers_of_unfinished_sub_queries_count_against_the_budget_once(data: Path, chat_server: Start) -> None:
    server = chat_server(brackets)
    for limit in (11, 30, 31):
        with pytest.raises(AgentirError, match=f"{limit} of max_calls {limit}; raise it and run the same"):
            run(label(data, server, "rankings", *IN_PARTS, "--model.budget.max-calls", str(limit)))
        assert len(server.seen) == limit
    finished = list(read_records(data / "rankings" / "labels.jsonl", LabelOutcome))
    journal = JournalFolder(data / "rankings" / "open").open(label_key(finished[0].ranking.subquery))

    async def left_by_a_kill() -> Generation:
        return Generation(reasoning="", text="x", usage=Usage(num_calls=4))

    asyncio.run(journal.step("generation", TypeAdapter(Generation), left_by_a_kill))
    journal.flush()
    run(label(data, server, "rankings", *IN_PARTS, "--model.budget.max-calls", str(4 * NUM)))
    assert len(server.seen) == report(data / "rankings")["usage"]["num_calls"] == 4 * NUM


@pytest.mark.parametrize("on_failure", ["retry", "leave_out"])
def test_a_wrong_key_is_told_at_once_and_asks_for_no_more(data: Path, chat_server: Start, on_failure: str) -> None:
    wrong = True
    server = chat_server(lambda seen: Reply({"error": {"message": "bad key"}}, 401) if wrong else brackets(seen))
    options = ("--model.concurrency", "4", "--on-failure", on_failure)
    told = (
        "unfinished: 16 sub-queries in a row failed, the last: refused: m: status 401: .*bad key.*; mend that and run"
    )
    with pytest.raises(AgentirError, match=told):
        run(label(data, server, "rankings", *options))
    assert 16 <= len(server.seen) <= 19
    wrong = False
    run(label(data, server, "rankings", *options))
    assert report(data / "rankings")["rankings"] == NUM


def test_where_no_server_is_no_more_is_tried(data: Path, chat_server: Start) -> None:
    options = ("--model.concurrency", "4", "--model.base-url", "http://127.0.0.1:9/v1")
    with pytest.raises(AgentirError, match="16 sub-queries in a row failed, the last: connection: m: "):
        run(label(data, chat_server(brackets), "rankings", *options))


def test_sub_queries_that_are_always_refused_can_be_left_out_at_last(data: Path, chat_server: Start) -> None:
    server = chat_server(lambda seen: brackets(seen) if question(seen) < 4 else Reply({"error": "filtered"}, 400))
    one_by_one = ("--model.concurrency", "1")
    for _ in range(2):
        with pytest.raises(AgentirError, match="16 sub-queries in a row failed, the last: refused: "):
            run(label(data, server, "rankings", *one_by_one))
    run(label(data, server, "rankings", *one_by_one, "--on-failure", "leave_out"))
    found = report(data / "rankings")
    assert (found["rankings"], found["subqueries_without_answer"], found["failed"]) == (4, 20, {"refused": 20})


def test_where_nothing_was_ever_answered_nothing_is_left_out(data: Path, chat_server: Start) -> None:
    server = chat_server(lambda seen: Reply({"error": "filtered"}, 400))
    for _ in range(3):
        with pytest.raises(AgentirError, match="16 sub-queries in a row failed"):
            run(label(data, server, "rankings", "--on-failure", "leave_out"))


def test_lists_beyond_the_context_stop_the_run_and_do_not_bind_the_folder(data: Path, chat_server: Start) -> None:
    def reply(seen: Seen) -> Reply:
        if len(passages(seen)) > 4:
            return Reply({"error": {"message": "This model's maximum context length is 100 tokens"}}, 400)
        return brackets(seen)

    server = chat_server(reply)
    with pytest.raises(
        AgentirError, match=r"none of the first 16 lists .*depth 6, passage_words 380, window none;.* 100 tok"
    ):
        run(label(data, server, "rankings"))
    run(label(data, server, "rankings", "--window", "4"))
    assert report(data / "rankings")["rankings"] == NUM


def test_what_failed_labels_took_and_what_was_sent_again_is_reported(data: Path, chat_server: Start) -> None:
    asked = Counter[int]()

    def reply(seen: Seen) -> Reply:
        asked[number := question(seen)] += 1
        if (number == 3 and asked[number] == 1) or (number == 5 and asked[number] > 1):
            return Reply({"error": "down"}, 500, {"retry-after-ms": "1"})
        return brackets(seen)

    options = ("--votes", "2", "--model.max-retries", "1", "--on-failure", "leave_out")
    run(label(data, chat_server(reply), "rankings", *options))
    found = report(data / "rankings")
    assert found["usage_of_failed"]["prompt_tokens"] == 10 and found["usage"]["prompt_tokens"] == 20 * (NUM - 1)
    assert found["retries"] == {"server_error": 2} and found["failed"] == {"server_error": 1}
    assert files(data / "rankings") == [".lock", "labels.jsonl", "manifest.json", "rankings.jsonl"]


def test_candidates_can_be_searched_by_vectors(data: Path, chat_server: Start, tiny_qwen3: Path) -> None:
    build_index(data / "dense", data / "corpus.jsonl", encoder=load_encoder(str(tiny_qwen3)))
    server = chat_server(brackets)
    arguments = label(data, server, "rankings", "--searcher", "dense")
    arguments[arguments.index("--index") + 1] = str(data / "dense")
    run(arguments)
    rankings = list(read_records(data / "rankings" / "rankings.jsonl", Ranking))
    assert len(rankings) == NUM
    assert all(len(ranking.candidates) == 6 for ranking in rankings)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--step", "2"], "step: expected less than window, found no window"),
        (["--step", "4", "--window", "4"], "step: expected less than window, found step 4, window 4"),
        (["--model.name", ""], "model.name: missing; set it to ask the model, or leave all of model out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    data: Path, chat_server: Start, options: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        run(label(data, chat_server(brackets), "rankings", *options))


def test_settings_of_a_model_that_is_not_named_are_named(data: Path) -> None:
    given = ["--subqueries", str(data / "subqueries"), "--index", str(data / "index")]
    given += ["--questions", str(data / "questions.jsonl"), "--out", str(data / "requests")]
    with pytest.warns(UserWarning, match="no model is named, so window, votes has no effect"):
        run(["synth", "label", *given, "--window", "4", "--votes", "3", "--form", "json"])
    first = json.loads((data / "requests" / "requests.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert "as JSON in the form" in first["messages"][1]["content"]
