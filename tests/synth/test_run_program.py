"""`agentir synth run`: all four programs, from questions to training examples, with a real server."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.cli import load_program
from agentir.config import load_config
from agentir.jsonl import write_jsonl
from agentir.records import Document
from agentir.search.builder import build_index

Start = Callable[[Callable[[Seen], Reply]], ScriptedServer]
CONFIGS = Path(__file__).parents[2] / "configs" / "synth"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    documents = [
        Document(
            docid=f"d{number}", title=f"Mill {number}", text=f"The mill number {number} was built in {1800 + number}."
        )
        for number in range(30)
    ]
    write_jsonl(folder / "corpus.jsonl", documents)
    build_index(folder / "index", folder / "corpus.jsonl")
    rows = [
        {"qid": f"q{n}", "question": f"When was mill {n} built?", "answer": str(1800 + n), "gold_docids": [f"d{n}"]}
        for n in range(6)
    ]
    write_jsonl(folder / "questions.jsonl", rows)
    return folder


def agent_and_oracle(seen: Seen) -> Reply:
    """Plays the agent, or for requests without tools the oracle, who puts the passage with the right number first."""
    messages = seen.body["messages"]
    if seen.body["model"] == "oracle":
        asked = messages[-1]["content"]
        year = re.search(r"Correct answer: (\d+)", asked)
        passages = re.findall(r"^\[(\d+)\] .* built in (\d+)\.", asked, re.MULTILINE)
        assert year and len(passages) > 8
        order = sorted(passages, key=lambda passage: passage[1] != year[1])
        return Reply(completion(" > ".join(f"[{number}]" for number, _ in order)))
    question = messages[1]["content"]
    if messages[-1]["role"] == "tool":
        return Reply(completion(f"{1800 + int(question.split()[3])}"))
    query = json.dumps({"query": question.split(" ", 1)[1]})
    return Reply(completion(reasoning=f"I need the year of mill {question.split()[3]}.", calls=[("search", query)]))


def run(
    folder: Path,
    server: ScriptedServer,
    out: Path,
    text: str = "",
    *more: str,
    top: str = "",
    with_oracle: bool = True,
) -> subprocess.CompletedProcess[str]:
    config = out.parent / f"{out.name}.toml"
    model = f'[model]\nname = "agent"\nbase_url = "{server.url}"\n'
    oracle = f'[oracle]\nname = "oracle"\nbase_url = "{server.url}"\n'
    config.write_text(top + model + (oracle if with_oracle else "") + text)
    command = [
        sys.executable, "-m", "agentir", "synth", "run", "--config", str(config),
        "--questions", str(folder / "questions.jsonl"), "--index", str(folder / "index"), "--out", str(out), *more,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_questions_become_training_examples(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(agent_and_oracle)
    done = run(folder, server, tmp_path / "out", "[label]\ndepth = 20\n[build]\nnum_negatives = 5\n")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\[\d/4\] synth \w+", done.stdout) == [
        "[1/4] synth rollout", "[2/4] synth extract", "[3/4] synth label", "[4/4] synth build",
    ]  # fmt: skip
    examples = rows_of(tmp_path / "out" / "build" / "train.jsonl")
    assert len(examples) == 6
    for number, example in enumerate(examples):
        assert example["positive_docids"] == [f"d{number}"] and len(example["negative_docids"]) == 5
        assert example["subquery"]["reasoning"] == f"I need the year of mill {number}."
        assert f"d{number}" not in example["negative_docids"]
    assert len(server.seen) == 6 * 2 + 6
    again = run(folder, server, tmp_path / "out", "[label]\ndepth = 20\n[build]\nnum_negatives = 5\n")
    assert again.returncode == 0 and again.stdout.count("complete already") == 4 and len(server.seen) == 18


def test_a_failure_stops_the_chain_and_the_next_start_goes_on(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    broken = True

    def script(seen: Seen) -> Reply:
        if broken and seen.body["model"] == "oracle":
            return Reply({"error": {"message": "no such model"}}, 404)
        return agent_and_oracle(seen)

    server = chat_server(script)
    done = run(folder, server, tmp_path / "out")
    assert done.returncode == 2 and "no such model" in done.stdout + done.stderr
    assert not (tmp_path / "out" / "build").exists()
    broken = False
    done = run(folder, server, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sum(seen.body["model"] == "agent" for seen in server.seen) == 12


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[label]\ndept = 20\n", "label: dept: unknown key; did you mean depth?"),
        ("[rollout]\nk = 0\n", "rollout: k: expected greater than or equal to 1, found 0"),
        ('[build]\ncorpus = "x"\n', "build.corpus: set by synth run itself"),
        ('[rollout]\noracle = { name = "x" }\n', "oracle, rollout.oracle: expected one of the two"),
        ("[oracel]\nk = 0\n", "oracel: unknown key; did you mean oracle"),
    ],
)
def test_all_settings_are_checked_before_anything_is_paid_for(
    folder: Path, chat_server: Start, tmp_path: Path, text: str, fault: str
) -> None:
    server = chat_server(agent_and_oracle)
    done = run(folder, server, tmp_path / "out", text)
    assert done.returncode == 2 and fault in done.stderr, done.stderr
    assert not server.seen and not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_configurations_that_come_along_fit(path: Path, tmp_path: Path) -> None:
    program = load_program("synth", "run")
    argv = ["--config", str(path), "--questions", "q.jsonl", "--index", "index", "--out", str(tmp_path / "out")]
    config = load_config(program.Config, argv, prog="agentir synth run")
    for name in program.PROGRAMS:
        program.settings(config, name, load_program("synth", name).Config)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# DR-Synth with") and any(f"configs/synth/{path.name}" in line for line in lines[:4])


def test_the_oracle_inside_the_rollout_shows_its_order_and_its_rankings_are_the_labels(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    server = chat_server(agent_and_oracle)
    table = f'[rollout]\nk = 2\noracle = {{ name = "oracle", base_url = "{server.url}" }}\nlists = {{ depth = 20 }}\n'
    done = run(folder, server, tmp_path / "out", table + "[build]\nnum_negatives = 5\n", with_oracle=False)
    assert done.returncode == 0, done.stderr
    assert len(server.seen) == 6 * 2 + 6
    for number, row in enumerate(rows_of(tmp_path / "out" / "rollout" / "trajectories.jsonl")):
        docids = row["turns"][0]["results"][0]["docids"]
        assert docids[0] == f"d{number}" and len(docids) == 2
    examples = rows_of(tmp_path / "out" / "build" / "train.jsonl")
    assert [example["positive_docids"] for example in examples] == [[f"d{number}"] for number in range(6)]
    assert all(example["subquery"]["reasoning"].startswith("I need the year") for example in examples)


def test_an_oracle_whose_answer_cannot_be_read_leaves_the_retrievers_order(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    def script(seen: Seen) -> Reply:
        return Reply(completion("I cannot say.")) if seen.body["model"] == "oracle" else agent_and_oracle(seen)

    server = chat_server(script)
    oracle = 'oracle = { name = "oracle" }\n'  # on the agent's server, as it has no address of its own
    done = run(folder, server, tmp_path / "out", f"[rollout]\nk = 3\n{oracle}", with_oracle=False)
    assert done.returncode == 2 and "sub-queries without a ranking (kept, but no labels): 6" in done.stdout, done.stderr
    assert "no training examples: 6 rankings; 6 rerank failed" in done.stderr
    assert not (tmp_path / "out" / "build" / "manifest.json").exists()
    plain = run(folder, chat_server(agent_and_oracle), tmp_path / "plain", "[rollout]\nk = 3\n")
    assert plain.returncode == 0, plain.stderr
    shown, expected = (rows_of(tmp_path / name / "rollout" / "trajectories.jsonl") for name in ("out", "plain"))
    for one, other in zip(shown, expected, strict=True):
        assert one["turns"][0]["results"][0]["docids"] == other["turns"][0]["results"][0]["docids"]


def one_model(seen: Seen) -> Reply:
    """The agent and the oracle behind one name: a request with tools is the agent's."""
    return agent_and_oracle(
        Seen(seen.path, {**seen.body, "model": "agent" if "tools" in seen.body else "oracle"}, 0, {})
    )


def test_one_model_for_both_has_one_budget(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    server = chat_server(one_model)

    def start(calls: int) -> subprocess.CompletedProcess[str]:
        more = ("--model.budget.max-calls", str(calls), "--label.depth", "20")
        return run(folder, server, tmp_path / "out", "", *more, with_oracle=False)

    done = start(12)
    assert done.returncode == 2 and "budget used up: the rollout took 12 of max_calls 12; raise it" in done.stderr
    done = start(15)
    assert done.returncode == 2 and "budget used up: 3 of max_calls 3" in done.stderr and len(server.seen) == 15
    done = start(18)
    assert done.returncode == 0 and len(server.seen) == 18, done.stderr
    assert start(18).stdout.count("complete already") == 4


def test_the_search_is_set_once_for_agent_and_candidates(
    folder: Path, chat_server: Start, tmp_path: Path, tiny_qwen3: Path
) -> None:
    done = run(
        folder, chat_server(agent_and_oracle), tmp_path / "out", top=f'searcher = "dense"\nencoder = "{tiny_qwen3}"\n'
    )
    assert done.returncode == 2 and "vectors" in done.stderr, "the index has none"
    program = load_program("synth", "run")
    argv = [
        "--model.name",
        "m",
        "--questions",
        "q",
        "--index",
        "i",
        "--out",
        "o",
        "--searcher",
        "dense",
        "--encoder",
        "e",
    ]
    config = load_config(program.Config, argv, prog="agentir synth run")
    for name in ("rollout", "label"):
        settings = program.settings(config, name, load_program("synth", name).Config)
        assert (settings.searcher, settings.encoder) == ("dense", "e")


def test_the_card_tells_how_every_step_was_made(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    done = run(folder, chat_server(agent_and_oracle), tmp_path / "out", "[label]\ndepth = 20\n[rollout]\nk = 3\n")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out" / "build" / "CARD.md").read_text()
    steps = re.findall(r"^### (\w+), by `agentir ([\w ]+)`", card, re.MULTILINE)
    assert steps == [
        ("Index", "index build"),
        ("Trajectories", "synth rollout"),
        ("Subqueries", "synth extract"),
        ("Rankings", "synth label"),
        ("Examples", "synth build"),
    ]
    parts = dict(zip([kind for kind, _ in steps], card.split("\n### ")[1:], strict=True))
    for row in (
        'model.name | `"agent"`',
        'model.dialect | `"generic"`',
        "k | `3`",
        'searcher | `"bm25"`',
        "system_sha256",
    ):
        assert f"| {row}" in parts["Trajectories"]
    for row in ('model.name | `"oracle"`', "depth | `20`", 'placement | `"shuffle"`', "prompt_sha256"):
        assert f"| {row}" in parts["Rankings"]
    assert "| questions | questions.jsonl | `" in parts["Subqueries"]


def test_an_oracle_inside_the_rollout_that_never_ranks_stops_it(
    folder: Path, chat_server: Start, tmp_path: Path
) -> None:
    """As many searches as it takes, each by an episode of its own."""
    rows = [{"qid": f"q{n}", "question": f"When was mill {n % 6} built?", "answer": "1800"} for n in range(40)]
    write_jsonl(tmp_path / "questions.jsonl", rows)
    (tmp_path / "index").symlink_to(folder / "index")

    def script(seen: Seen) -> Reply:
        if seen.body["model"] == "oracle":
            return Reply({"error": {"message": "maximum context length is 100 tokens"}}, 400)
        return agent_and_oracle(seen)

    server = chat_server(script)
    table = f'[rollout]\noracle = {{ name = "oracle", base_url = "{server.url}" }}\nepisodes_at_once = 2\n'
    done = run(tmp_path, server, tmp_path / "out", table, with_oracle=False)
    assert done.returncode == 2, done.stdout
    assert "16 episodes in a row failed, the last: tool: none of the first " in done.stderr
    assert (
        "longer than the model's context (depth 50, passage_words 380, window none; the server: oracle:" in done.stderr
    )


def test_a_search_that_finds_nothing_asks_no_oracle(folder: Path, chat_server: Start, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "questions.jsonl", [{"qid": "q0", "question": "When was mill 3 built?", "answer": "1803"}])
    (tmp_path / "index").symlink_to(folder / "index")

    def script(seen: Seen) -> Reply:
        assert seen.body["model"] == "agent"
        if seen.body["messages"][-1]["role"] == "tool":
            return Reply(completion("1803"))
        return Reply(completion(reasoning="Hm.", calls=[("search", '{"query": "zzz"}')]))

    server = chat_server(script)
    table = f'[rollout]\noracle = {{ name = "oracle", base_url = "{server.url}" }}\n'
    done = run(tmp_path, server, tmp_path / "out", table, with_oracle=False)
    assert "no training examples: 0 rankings" in done.stderr
    (row,) = rows_of(tmp_path / "out" / "rollout" / "trajectories.jsonl")
    assert "found nothing" in row["turns"][0]["results"][0]["content"] and len(server.seen) == 2
