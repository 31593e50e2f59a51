"""`agentir synth rollout` against a real server: kills, failures, locks, budgets."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.artifacts import read_manifest
from agentir.jsonl import read_records, write_jsonl
from agentir.records import Document, Trajectory
from agentir.search.builder import build_index

Start = Callable[[Callable[[Seen], Reply]], ScriptedServer]
NUM_QUESTIONS = 24
WORDS = ["mill", "river", "bridge", "tower", "harbour", "castle", "garden", "market"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its index, and questions."""
    folder = tmp_path_factory.mktemp("rollout")
    documents = [
        Document(
            docid=f"d{number}", title=f"The {word} {number}", text=f"The old {word} number {number} stands in Bergen."
        )
        for number, word in enumerate(WORDS * 4)
    ]
    write_jsonl(folder / "corpus.jsonl", documents)
    build_index(folder / "index", folder / "corpus.jsonl")
    rows = [
        {"qid": f"q{number}", "question": f"Where is the old {WORDS[number % 8]} {number}?", "answer": "Bergen"}
        for number in range(NUM_QUESTIONS)
    ]
    write_jsonl(folder / "questions.jsonl", rows)
    return folder


def agent_script(seen: Seen) -> Reply:
    """Searches as often as the question's number says, then answers; what it says depends on the conversation only."""
    messages = seen.body["messages"]
    question = messages[1]["content"]
    number = int(question.rstrip("?").split()[-1])
    done = sum(message["role"] == "tool" for message in messages)
    if done >= 1 + number % 3:
        return Reply(completion(f"Bergen ({done})", reasoning="All is settled."), delay=0.02)
    arguments = json.dumps({"query": f"{question} step {done}"})
    return Reply(completion(reasoning=f"Step {done} of {question}", calls=[("search", arguments)]), delay=0.02)


def command(folder: Path, server: ScriptedServer, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "agentir", "synth", "rollout",
        "--questions", str(folder / "questions.jsonl"), "--index", str(folder / "index"), "--out", str(out),
        "--model.name", "m", "--model.base-url", server.url, "--episodes-at-once", "8", *more,
    ]  # fmt: skip


def rollout(folder: Path, server: ScriptedServer, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, server, out, *more), capture_output=True, text=True, timeout=120)


def comparable(out: Path) -> list[dict[str, Any]]:
    """The trajectories without what no two runs share: the server's pace."""
    rows = [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]
    for row in rows:
        for turn in row["turns"]:
            assert turn.pop("latency") >= 0
    return rows


def test_one_episode_a_question_in_their_order(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    done = rollout(folder, chat_server(agent_script), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "24 of 24 episodes (0 from before): 24 completed" in done.stdout and "failed=0" in done.stdout
    trajectories = list(read_records(tmp_path / "out" / "trajectories.jsonl", Trajectory))
    assert [trajectory.qid for trajectory in trajectories] == [f"q{number}" for number in range(NUM_QUESTIONS)]
    fifth = trajectories[5]
    assert (fifth.answer, fifth.status, len(fifth.turns)) == ("Bergen (3)", "completed", 4)
    assert fifth.turns[0].reasoning == "Step 0 of Where is the old castle 5?"
    assert len(fifth.turns[0].results[0].docids) == 5
    report = read_manifest(tmp_path / "out", "trajectories")["report"]
    assert report["by_status"] == {"completed": 24} and report["usage"]["num_calls"] == 24 * 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock",
        "manifest.json",
        "trajectories.jsonl",
    ]
    again = rollout(folder, chat_server(agent_script), tmp_path / "out")
    assert again.returncode == 0 and "complete already" in again.stdout


def test_killed_twenty_times_the_output_is_the_same_and_nothing_is_asked_twice(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    whole = chat_server(agent_script)
    assert rollout(folder, whole, tmp_path / "whole").returncode == 0
    server = chat_server(lambda seen: Reply(agent_script(seen).body, delay=0.15))
    rng = random.Random(7)
    num_kills = num_in_flight = 0
    while num_kills < 20:
        before = len(server.seen)
        process = subprocess.Popen(
            command(folder, server, tmp_path / "out", "--episodes-at-once", "2"), stderr=subprocess.DEVNULL
        )
        while len(server.seen) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        num_kills += 1
        num_in_flight += 2
    assert num_kills == 20
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert comparable(tmp_path / "out") == comparable(tmp_path / "whole")
    asked = [json.dumps(seen.body) for seen in server.seen]
    assert len(set(asked)) == len(whole.seen)
    assert len(asked) - len(set(asked)) <= num_in_flight, "only the calls in flight are asked again"


def test_a_second_process_is_refused(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(lambda seen: Reply(agent_script(seen).body, delay=1.0))
    first = subprocess.Popen(command(folder, server, tmp_path / "out"), stderr=subprocess.DEVNULL)
    try:
        while not server.seen:
            time.sleep(0.02)
        second = rollout(folder, server, tmp_path / "out")
        assert second.returncode == 2 and f"another process (pid {first.pid}) is writing here" in second.stderr
    finally:
        first.kill()
        first.wait()


def test_interrupted_by_the_user_it_ends_at_once_and_goes_on_later(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    interrupted = threading.Event()

    def script(seen: Seen) -> Reply:  # after a dozen calls none is answered before the interruption
        slow = len(server.seen) > 12 and not interrupted.is_set()
        return Reply(agent_script(seen).body, delay=4 if slow else 0.3)

    server = chat_server(script)
    process = subprocess.Popen(command(folder, server, tmp_path / "out"), stderr=subprocess.PIPE, text=True)
    while len(server.seen) < 13:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    interrupted.set()
    assert process.returncode == 130 and "run the same command again to continue" in errors
    assert "Traceback" not in errors
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 0 and len(comparable(tmp_path / "out")) == NUM_QUESTIONS


def test_failed_episodes_are_told_and_only_they_are_tried_again(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    broken = True

    def script(seen: Seen) -> Reply:
        question = seen.body["messages"][1]["content"]
        if broken and question.endswith(" 7?") and len(seen.body["messages"]) > 2:
            return Reply({"error": {"message": "the node is down"}}, 500)
        return agent_script(seen)

    server = chat_server(script)
    done = rollout(folder, server, tmp_path / "out", "--model.max-retries", "0")
    assert done.returncode == 2 and "failed=1" in done.stdout and "23 completed" in done.stdout
    assert "q7: server_error: m: status 500: " in done.stdout and "the node is down" in done.stdout
    assert "1 of 24 episodes failed" in done.stderr
    num_asked = len(server.seen)
    broken = False
    done = rollout(folder, server, tmp_path / "out", "--model.max-retries", "0")
    assert done.returncode == 0, done.stderr
    assert "24 of 24 episodes (23 from before)" in done.stdout
    assert len(server.seen) == num_asked + 2, "the first call of the failed episode was paid for before"


def test_failed_episodes_can_be_left_out_and_are_then_listed(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        if seen.body["messages"][1]["content"].endswith(" 7?"):
            return Reply({"error": {"message": "bad request"}}, 400)
        return agent_script(seen)

    done = rollout(folder, chat_server(script), tmp_path / "out", "--on-failure", "leave_out")
    assert done.returncode == 0, done.stderr
    report = read_manifest(tmp_path / "out")["report"]
    assert report["episodes"] == 23 and report["failed_by_cause"] == {"refused": 1} and "q7" in report["failed"]


def test_a_wrong_key_is_told_at_once_and_begins_no_more(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    wrong = True
    server = chat_server(lambda seen: Reply({"error": {"message": "bad key"}}, 401) if wrong else agent_script(seen))
    more = ["--episodes-at-once", "4", "--on-failure", "leave_out"]
    done = rollout(folder, server, tmp_path / "out", *more)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "16 episodes in a row failed, the last: refused: m: status 401: " in done.stderr
    assert "bad key" in done.stderr and "; mend that and run the same command again to continue" in done.stderr
    assert 16 <= len(server.seen) <= 19
    wrong = False
    done = rollout(folder, server, tmp_path / "out", *more)
    assert done.returncode == 0 and "24 of 24 episodes (0 from before): 24 completed" in done.stdout


def test_a_used_up_budget_stops_cleanly_and_counts_over_starts(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    server = chat_server(agent_script)
    done = rollout(folder, server, tmp_path / "out", "--model.budget.max-calls", "30")
    assert done.returncode == 2 and "budget used up: 30 of max_calls 30; raise it" in done.stderr
    assert len(server.seen) == 30
    done = rollout(folder, server, tmp_path / "out", "--model.budget.max-calls", "30")
    assert done.returncode == 2 and len(server.seen) == 30
    done = rollout(folder, server, tmp_path / "out", "--model.budget.max-calls", "72")
    assert done.returncode == 0 and len(server.seen) == 72


def test_another_agent_may_not_continue_the_folder(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_script)
    rollout(folder, server, tmp_path / "out", "--model.budget.max-calls", "5")
    done = rollout(folder, server, tmp_path / "out", "--k", "3")
    assert done.returncode == 2 and "k: before 5, now 3" in done.stderr


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--server", "http://127.0.0.1:1"], "index, server: expected one of the two"),
        (["--splits", "nowhere"], "expected questions of these splits, found none"),
        (["--model.dialect", "klingon"], "--model.dialect: expected 'generic'"),
        (
            ["--task", "Answer it."],
            "--task: expected {question} in it, which the question takes the place of, found 'Answer",
        ),
        (["--model.temperature", "-1"], "--model.temperature: expected greater than or equal to 0"),
    ],
)
def test_bad_settings(folder: Path, chat_server: Start, tmp_path: Path, more: list[str], text: str) -> None:
    done = rollout(folder, chat_server(agent_script), tmp_path / "out", *more)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


def test_an_address_where_no_server_is_fails_every_episode(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_script)
    more = ["--model.base-url", "http://127.0.0.1:9/v1", "--model.max-retries", "0", "--max-questions", "3"]
    done = rollout(folder, server, tmp_path / "out", *more)
    assert done.returncode == 2 and "3 of 3 episodes failed" in done.stderr and "connection: m:" in done.stdout


def test_no_torch_is_loaded_for_a_bm25_rollout(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    code = (
        "import sys; from agentir.cli import run; run(sys.argv[1:]); "
        "assert not {'torch', 'faiss', 'sentence_transformers'} & sys.modules.keys(), sorted(sys.modules)"
    )
    arguments = command(folder, chat_server(agent_script), tmp_path / "out")[3:]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_an_unfinished_folder_goes_on_with_more_questions_and_a_finished_one_says_so(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    server = chat_server(agent_script)
    stopped = rollout(folder, server, tmp_path / "out", "--max-questions", "3", "--model.budget.max-calls", "8")
    assert stopped.returncode == 2 and "budget used up" in stopped.stderr
    done = rollout(folder, server, tmp_path / "out", "--max-questions", "6")
    assert done.returncode == 0 and "6 of 6 episodes" in done.stdout, done.stderr
    assert len(server.seen) == 6 * 3
    again = rollout(folder, server, tmp_path / "out", "--max-questions", "6")
    assert again.returncode == 0 and "complete already" in again.stdout
    more = rollout(folder, server, tmp_path / "out", "--max-questions", "9")
    assert more.returncode == 2 and "complete with 6 questions, which are not the 9 that" in more.stderr
    assert "name a new out folder" in more.stderr and len(server.seen) == 6 * 3


def test_with_fewer_questions_the_others_count_as_besides(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_script)
    rollout(folder, server, tmp_path / "out", "--episodes-at-once", "1", "--model.budget.max-calls", "10")
    assert rollout(folder, server, tmp_path / "out", "--max-questions", "2").returncode == 0
    report = read_manifest(tmp_path / "out")["report"]
    assert (report["episodes"], report["usage"]["num_calls"], report["usage_of_failed"]["num_calls"]) == (2, 5, 5)
    assert len(comparable(tmp_path / "out")) == 2


def test_what_failed_episodes_took_and_what_was_sent_again_is_reported(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    broken = {"once"}

    def script(seen: Seen) -> Reply:
        number = seen.body["messages"][1]["content"].rstrip("?").split()[-1]
        if number == "7" and len(seen.body["messages"]) > 2:
            return Reply({"error": "filtered"}, 400)
        if number == "8" and broken:
            broken.clear()
            return Reply({"error": "down"}, 500, {"retry-after-ms": "1"})
        return agent_script(seen)

    done = rollout(folder, chat_server(script), tmp_path / "out")
    assert done.returncode == 2
    done = rollout(folder, chat_server(script), tmp_path / "out", "--on-failure", "leave_out")
    assert done.returncode == 0, done.stderr
    report = read_manifest(tmp_path / "out")["report"]
    assert report["retries"] == {"server_error": 1}, "those of earlier starts, too"
    assert report["usage_of_failed"]["num_calls"] == 1 and list(report["failed"]) == ["q7"]


def test_a_server_that_goes_away_in_the_middle_stops_the_run_although_failures_are_left_out(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    def script(seen: Seen) -> Reply:
        number = int(seen.body["messages"][1]["content"].rstrip("?").split()[-1])
        return agent_script(seen) if number < 4 or not away else Reply({"error": "no credit"}, 403)

    away, more = True, ["--episodes-at-once", "1", "--on-failure", "leave_out"]
    server = chat_server(script)
    done = rollout(folder, server, tmp_path / "out", *more)
    assert done.returncode == 2 and "16 episodes in a row failed, the last: refused: " in done.stderr
    assert "4 completed" in done.stdout
    away = False
    done = rollout(folder, server, tmp_path / "out", *more)
    assert done.returncode == 0 and "24 of 24 episodes (4 from before)" in done.stdout, done.stderr


def test_a_search_server_that_is_away_stops_the_run_and_one_with_another_index_does_not_go_on(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    version, away = "v1", False

    def search(seen: Seen) -> Reply:
        if away and seen.body["query"] != "a":
            return Reply({"error": {"code": "internal", "field": None, "message": "the disk is gone"}}, 500)
        found = {"docid": "d1", "title": "", "url": "", "score": 1.0, "snippet": "The old mill stands in Bergen."}
        told = {"index_version": version, "reasoning_used": False, "reasoning_truncated": False, "reasoning": ""}
        return Reply({"results": [found], **told})

    address = chat_server(search).url.removesuffix("/v1")
    server, out = chat_server(agent_script), tmp_path / "out"
    arguments = command(folder, server, out, "--server", address, "--searcher", "dense")
    place = arguments.index("--index")
    del arguments[place : place + 2]

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*arguments, *more], capture_output=True, text=True, timeout=120)

    away = True
    done = start("--on-failure", "leave_out")
    assert done.returncode == 2 and "16 episodes in a row failed, the last: tool: " in done.stderr, done.stderr
    assert "the server decides how it searches, so searcher has no effect" in done.stderr
    version, away = "v2", False
    assert "index_version: before 'v1', now 'v2'" in start().stderr
    version = "v1"
    assert start().returncode == 0
    assert read_manifest(out)["config"]["index_version"] == "v1"


def test_a_wrong_name_does_not_bind_the_folder(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_script)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for wrong, text in (
        (["--index", str(tmp_path)], "expected"),
        (["--model.name", ""], "model.name: missing"),
        (["--searcher", "dense"], "vectors"),
        (["--system", str(tmp_path / "latin.txt")], "system: expected"),
        (["--model.base-url", "http://[::1"], "model.base_url: expected"),
        (["--max-minutes", "inf"], "--max-minutes: expected a finite number"),
        (["--model.extra-body", "{x = 2020-01-01}"], "expected values that JSON has"),
    ):
        done = rollout(folder, server, tmp_path / "out", *wrong)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = rollout(folder, server, tmp_path / "out", "--max-questions", "2")
    assert done.returncode == 0, done.stderr


def test_answers_longer_than_the_context_fail_instead_of_ending_every_episode(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    text = "'max_tokens' is too large: 40000. This model's maximum context length is 32768 tokens"
    server = chat_server(lambda seen: Reply({"message": text, "code": 400}, 400))
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 2 and "16 episodes in a row failed" in done.stderr and "is too large" in done.stderr
    server.script = agent_script
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 0 and "24 completed" in done.stdout, done.stderr


def test_a_damaged_journal_is_told_and_costs_only_its_episode(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_script)
    rollout(folder, server, tmp_path / "out", "--model.budget.max-calls", "5", "--episodes-at-once", "2")
    journals = list((tmp_path / "out" / "open").iterdir())
    assert journals
    for journal in journals:
        journal.write_text('{"kind": 7}\n')
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 2 and ".jsonl:1: kind: expected a valid string, found 7; delete the file" in done.stderr
    for journal in journals:
        journal.unlink()
    done = rollout(folder, server, tmp_path / "out")
    assert done.returncode == 0 and "24 completed" in done.stdout, done.stderr
