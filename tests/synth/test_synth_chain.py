"""The synth programs one after the other, through the command line's entry, on a handful of documents."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentir.artifacts import Artifact
from agentir.chat.transcripts import read_trajectories
from agentir.cli import run
from agentir.config import Section
from agentir.errors import ArtifactError, ConfigError, InputError
from agentir.jsonl import Rejects
from agentir.search.builder import build_index

CASES = Path(__file__).parents[1] / "data" / "cases"
CORPUS = [
    {"docid": "abba", "title": "Abba", "text": "A pop group from Stockholm."},
    {"docid": "roxette", "text": "A pop duo from Halmstad, a town on the coast."},
    {"docid": "halmstad", "text": "A coastal town whose duo sang pop."},
    {"docid": "copy", "text": "A pop  group from Stockholm."},
    {"docid": "oslo", "text": "The capital of Norway."},
    {"docid": "bergen", "text": "A town on the coast of Norway."},
]
QUESTIONS: list[dict[str, Any]] = [
    {"qid": "q1", "question": "Where is the duo from?", "answer": "Halmstad", "gold_docids": ["roxette", "halmstad"]},
    {"qid": "q2", "question": "Which capital?", "answer": "Oslo", "gold_docids": ["oslo"], "split": "heldout"},
    {"qid": "q3", "question": "Which?", "gold_docids": ["gone"]},
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["report"]
    return found


def episode(qid: str, *searches: tuple[str, str]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    for number, (reasoning, query) in enumerate(searches):
        function = {"name": "search", "arguments": json.dumps({"query": query})}
        messages += [
            {
                "role": "assistant",
                "reasoning_content": reasoning,
                "tool_calls": [{"id": str(number), "function": function}],
            },
            {"role": "tool", "tool_call_id": str(number), "content": "[]"},
        ]
    return {"qid": qid, "messages": [*messages, {"role": "assistant", "content": "x"}], "status": "completed"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", CORPUS)
    write(tmp_path / "questions.jsonl", QUESTIONS)
    episodes = [
        episode("q1", ("A duo, maybe from Halmstad.", "pop duo town coast"), ("", "pop group")),
        episode("q2", ("Norway?", "capital of Norway")),
        episode("q3", ("So?", "town")),
        episode("q4", ("So?", "town")),
    ]
    write(tmp_path / "runs.jsonl", episodes)
    run(synth("extract", tmp_path, trajectories="runs.jsonl", questions="questions.jsonl", out="subqueries"))
    return tmp_path


def synth(program: str, folder: Path, **options: str) -> list[str]:
    arguments = ["synth", program]
    for name, value in options.items():
        is_path = name in ("trajectories", "questions", "out", "subqueries", "answers", "index", "rankings", "corpus")
        arguments += [f"--{name}", str(folder / value) if is_path else value]
    return arguments


def test_extracted_sub_queries_and_what_was_left_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [
        (row["qid"], row["turn"], row["reasoning"], row["query"]) for row in lines(data / "subqueries/subqueries.jsonl")
    ] == [
        ("q1", 0, "A duo, maybe from Halmstad.", "pop duo town coast"),
        ("q1", 1, "", "pop group"),
        ("q2", 0, "Norway?", "capital of Norway"),
        ("q3", 0, "So?", "town"),
    ]
    found = report(data / "subqueries")
    assert found["trajectories_of_unknown_questions"] == 1
    assert (found["questions_without_answer"], found["questions_without_gold"]) == (1, 0)
    assert found["trajectories_by_status"] == {"completed": 4}
    assert found["trajectories_with_matching_answer"] == 0
    run(synth("extract", data, trajectories="runs.jsonl", questions="questions.jsonl", out="subqueries"))
    assert "complete already" in capsys.readouterr().out


def test_sub_queries_of_a_rollout_are_those_of_its_transcripts(data: Path) -> None:
    trajectories = read_trajectories(data / "runs.jsonl", Rejects())
    with Artifact(data / "rollout", "trajectories", Section(), inputs={}) as artifact:
        artifact.write("trajectories.jsonl", [replace(one, answer="Oslo, Norway") for one in trajectories])
        artifact.finish({})
    run(synth("extract", data, trajectories="rollout", questions="questions.jsonl", out="from_rollout"))
    assert lines(data / "from_rollout/subqueries.jsonl") == lines(data / "subqueries/subqueries.jsonl")
    assert report(data / "from_rollout")["trajectories_with_matching_answer"] == 1
    arguments = synth("extract", data, trajectories="rollout", questions="questions.jsonl", out="correct")
    run([*arguments, "--trajectories-used", "correct"])
    assert [row["qid"] for row in lines(data / "correct/subqueries.jsonl")] == ["q2"]
    with pytest.raises(ArtifactError, match="expected a trajectories artifact, found subqueries"):
        run(synth("extract", data, trajectories="subqueries", questions="questions.jsonl", out="other"))


def test_requests_with_responses_added_become_rankings_and_examples(data: Path) -> None:
    build_index(data / "index", data / "corpus.jsonl")
    run(synth("label", data, subqueries="subqueries", index="index", questions="questions.jsonl", out="requests"))
    requests = lines(data / "requests/requests.jsonl")
    assert [(row["qid"], row["turn"], row["call"]) for row in requests] == [("q1", 0, 0), ("q1", 1, 0), ("q2", 0, 0)]
    assert report(data / "requests")["of_questions_without_answer"] == 1
    assert report(data / "requests")["same_text"] > 0
    first = requests[0]
    assert {"roxette", "halmstad"} <= set(first["candidates"])
    assert len(first["candidates"]) == len(set(first["candidates"]))
    assert len({"abba", "copy"} & set(first["candidates"])) == 1
    assert (first["question"], first["answer"], first["num_gold_first"]) == ("Where is the duo from?", "Halmstad", 0)
    shown = first["messages"][1]["content"]
    texts = {row["docid"]: " ".join(f"{row.get('title', '')} {row['text']}".split()) for row in CORPUS}
    for number, docid in enumerate(first["candidates"], start=1):
        assert f"\n[{number}] {texts[docid]}\n" in shown

    for row in requests:
        best = [docid for docid in ("halmstad", "roxette", "oslo") if docid in row["candidates"]]
        order = best + [docid for docid in sorted(row["candidates"]) if docid not in best]
        row["response"] = " > ".join(f"[{row['candidates'].index(docid) + 1}]" for docid in order)
    write(data / "answers.jsonl", requests)
    run(synth("label", data, subqueries="subqueries", answers="answers.jsonl", out="rankings"))
    assert report(data / "rankings")["without_answer"] == ["q3_turn0"]
    for corpus in ("index", "corpus.jsonl"):
        out = f"examples_{corpus}"
        run(synth("build", data, rankings="rankings", questions="questions.jsonl", corpus=corpus, out=out))
        train, heldout = lines(data / out / "train.jsonl"), lines(data / out / "heldout.jsonl")
        assert [row["positive_docids"] for row in train] == [["halmstad"], ["halmstad"]]
        assert all({"roxette", "halmstad", "oslo"}.isdisjoint(row["negative_docids"]) for row in train + heldout)
        assert heldout[0]["positive_docids"] == ["oslo"]
        assert lines(data / out / "dev.jsonl") == []
        found = report(data / out)
        assert found["gold_docids_not_in_corpus"] == ["gone"]
        assert found["train"]["passed_over_as_negatives"]["own_gold"] == 2
        assert found["train"]["leaks"] == 0.5
        rows = lines(data / out / "tevatron.jsonl")
        assert [list(row) for row in rows] == [["query_id", "query", "positive_passages", "negative_passages"]] * 2
        assert [(row["query_id"], row["query"]) for row in rows] == [
            ("q1_turn0", "Reasoning: A duo, maybe from Halmstad.\n\nQuery: pop duo town coast"),
            ("q1_turn1", "Reasoning: Empty\n\nQuery: pop group"),
        ]
        assert rows[0]["positive_passages"] == [{"docid": "halmstad", "text": "A coastal town whose duo sang pop."}]
        passages = {passage["docid"]: passage["text"] for row in rows for passage in row["negative_passages"]}
        assert passages.get("abba", "Abba A pop group from Stockholm.") == "Abba A pop group from Stockholm."
        assert "copy" in passages or "abba" in passages


def test_candidates_can_stand_as_in_agentir(data: Path) -> None:
    build_index(data / "index", data / "corpus.jsonl")
    arguments = synth(
        "label", data, subqueries="subqueries", index="index", questions="questions.jsonl", out="requests"
    )
    run([*arguments, "--placement", "gold_first", "--depth", "3", "--passage-words", "2"])
    first = lines(data / "requests/requests.jsonl")[0]
    assert first["candidates"][:2] == ["roxette", "halmstad"]
    assert (len(first["candidates"]), first["num_gold_first"]) == (3, 2)
    assert "[1] A pop …\n[2] A coastal …\n" in first["messages"][1]["content"]


def test_ids_that_the_corpus_lacks_are_refused_with_the_line_or_set_aside(data: Path) -> None:
    """Case T17."""
    shutil.copyfile(CASES / "T17" / "corpus.jsonl", data / "numbers.jsonl")
    ids = lines(CASES / "T17" / "train.jsonl")[0]
    answers = [
        {
            "qid": "q1",
            "turn": 0,
            "candidates": [*ids["positive_ids"], *ids["negative_ids"]],
            "response": "[1] > [2] > [3]",
        },
        {"qid": "q1", "turn": 1, "candidates": ["12", "013"], "response": "[1] > [2]"},
    ]
    write(data / "answers.jsonl", answers)
    run(synth("label", data, subqueries="subqueries", answers="answers.jsonl", out="rankings"))
    arguments = synth(
        "build", data, rankings="rankings", questions="questions.jsonl", corpus="numbers.jsonl", out="examples"
    )
    with pytest.raises(InputError, match=r"rankings\.jsonl:1: order: expected ids of documents in .*, found \['13'\]"):
        run(arguments)
    assert not (data / "examples").exists()
    run([*arguments, "--on-bad-line", "set_aside"])
    (example,) = lines(data / "examples/train.jsonl")
    assert (example["positive_docids"], example["negative_docids"]) == (["12"], ["013"])
    assert [(row["line"], row["found"]) for row in lines(data / "examples/rejected.jsonl")] == [(1, "['13']")]


def test_an_example_without_negatives_is_kept_but_gives_no_training_row_for_tevatron(data: Path) -> None:
    answers = [{"qid": "q1", "turn": turn, "candidates": ["abba", "bergen"][: turn + 1]} for turn in (0, 1)]
    write(data / "answers.jsonl", [row | {"response": "[1]" if row["turn"] == 0 else "[1] > [2]"} for row in answers])
    run(synth("label", data, subqueries="subqueries", answers="answers.jsonl", out="rankings"))
    run(synth("build", data, rankings="rankings", questions="questions.jsonl", corpus="corpus.jsonl", out="examples"))
    examples = lines(data / "examples/train.jsonl")
    assert [row["negative_docids"] for row in examples] == [[], ["bergen"]]
    assert [row["query_id"] for row in lines(data / "examples/tevatron.jsonl")] == ["q1_turn1"]
    found = report(data / "examples")
    assert (found["train"]["without_negatives"], found["train"]["with_fewer_negatives"], found["tevatron_rows"]) == (
        1,
        1,
        1,
    )


def test_lines_that_do_not_fit_stop_each_program_before_it_writes(data: Path) -> None:
    write(data / "bad.jsonl", [*QUESTIONS, {"qid": "q9", "question": " "}])
    for arguments in (
        synth("extract", data, trajectories="runs.jsonl", questions="bad.jsonl", out="out"),
        synth("label", data, subqueries="subqueries", answers="bad.jsonl", out="out"),
        synth("label", data, subqueries="subqueries", answers="runs.jsonl", out="out"),
    ):
        with pytest.raises(InputError, match=r"\.jsonl:\d: "):
            run(arguments)
        assert not (data / "out").exists()
    run(
        [
            *synth("extract", data, trajectories="runs.jsonl", questions="bad.jsonl", out="out"),
            "--on-bad-line",
            "set_aside",
        ]
    )
    assert report(data / "out")["rejected_lines"] == {str(data / "bad.jsonl"): 1}


@pytest.mark.parametrize("name", ["more.jsonl", "runs.jsonl"])
def test_a_second_episode_of_a_question_is_refused_over_all_files(data: Path, name: str) -> None:
    write(data / "more.jsonl", [episode("q1", ("", "x"))])
    arguments = synth("extract", data, trajectories="runs.jsonl", questions="questions.jsonl", out="out")
    arguments.insert(arguments.index("--questions"), str(data / name))
    with pytest.raises(
        InputError, match=rf"{name}: expected episodes of other questions than .*runs\.jsonl, found 'q1'"
    ):
        run(arguments)


def test_requests_need_an_index_and_questions(data: Path) -> None:
    with pytest.raises(ConfigError, match="index and questions: missing; set answers to make rankings, or"):
        run(synth("label", data, subqueries="subqueries", out="out"))
    with pytest.raises(ArtifactError, match="expected a rankings artifact, found subqueries"):
        run(synth("build", data, rankings="subqueries", questions="questions.jsonl", corpus="corpus.jsonl", out="out"))


def test_settings_that_answers_make_useless_are_named(data: Path) -> None:
    write(data / "answers.jsonl", [])
    arguments = synth(
        "label", data, subqueries="subqueries", answers="answers.jsonl", out="rankings", depth="5", seed="1"
    )
    with pytest.warns(UserWarning, match="answers are given, so depth, seed has no effect"):
        run(arguments)
