"""The program `agentir eval retrieval`, over tiny indexes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytrec_eval

from agentir.artifacts import Artifact, read_manifest, verify_files
from agentir.cli import load_program, run
from agentir.embed.load import load_encoder
from agentir.embed.template import template_for
from agentir.errors import ConfigError, InputError
from agentir.jsonl import read_records, write_jsonl
from agentir.measures.query_values import read_query_values
from agentir.records import PastSearch, SearchQuery, SubQuery, TrainingExample
from agentir.search.builder import build_index
from agentir.search.index import Index

CORPUS = [
    {"docid": "mead", "title": "Margaret Mead", "text": "Margaret Mead was an anthropologist who died in New York."},
    {"docid": "fortune", "title": "Reo Fortune", "text": "Reo Fortune, an anthropologist, married Margaret Mead."},
    {"docid": "oslo", "title": "Oslo Opera House", "text": "The Oslo Opera House was designed by Snohetta."},
    {"docid": "bergen", "title": "Bergen", "text": "Bergen is a city in Norway."},
]
QUESTIONS = [
    {"qid": "q1", "question": "Where did the wife of Reo Fortune die?", "answer": "New York", "dataset": "easy"},
    {
        "qid": "q2",
        "question": "Which firm designed the opera of a northern capital?",
        "answer": "Snohetta",
        "dataset": "hard",
    },
]


def example(
    qid: str, turn: int, query: str, reasoning: str, *positives: str, num_gold_first: int = 0
) -> TrainingExample:
    question = {item["qid"]: item["question"] for item in QUESTIONS}.get(qid, "?")
    subquery = SubQuery(qid=qid, turn=turn, call=0, question=question, reasoning=reasoning, query=query)
    return TrainingExample(
        subquery=subquery,
        positive_docids=positives,
        negative_docids=(),
        oracle_order=(),
        num_gold_first=num_gold_first,
    )


EXAMPLES = [
    example("q1", 0, "Reo Fortune wife", "First who she was.", "fortune"),
    example("q1", 1, "place where she died", "The wife was Margaret Mead.", "mead", num_gold_first=1),
    example("q2", 0, "opera designed by", "A capital in the north.", "oslo"),
    example("q2", 1, "zebra", "Nothing will be found.", "bergen"),
]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "corpus.jsonl", CORPUS)
    write_jsonl(tmp_path / "questions.jsonl", QUESTIONS)
    write_jsonl(tmp_path / "heldout.jsonl", EXAMPLES)
    build_index(tmp_path / "index", tmp_path / "corpus.jsonl")
    return tmp_path


def arguments(folder: Path, *more: str, searcher: str | None = "bm25") -> list[str]:
    paths = {"examples": "heldout.jsonl", "questions": "questions.jsonl", "index": "index", "out": "out"}
    options = [text for name, path in paths.items() for text in (f"--{name}", str(folder / path))]
    chosen = [] if searcher is None else ["--searcher", searcher]
    return ["eval", "retrieval", *options, "--system", "BM25", *chosen, *more]


def run_file(folder: Path, text: str) -> list[str]:
    """The arguments to evaluate a run of another system."""
    (folder / "theirs.trec").write_text(text, encoding="utf-8")
    return arguments(folder, "--run", str(folder / "theirs.trec"), searcher=None)


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = read_manifest(folder, "evaluation")["report"]
    return report


def test_an_evaluation_holds_values_slices_and_trec_files(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hard = '{"hard questions" = {dataset = "hard"}}'
    run(arguments(inputs, "--slices", hard, "--seed", "3"))
    out = inputs / "out"
    assert verify_files(out) == []
    values = read_query_values(out, ["nDCG@10", "Recall@5", "MRR@10"])
    assert list(values) == ["q1_turn0", "q1_turn1", "q2_turn0", "q2_turn1"]
    assert values["q1_turn0"].slices == ("all", "first turn", "shuffled list")  # the query names the title
    assert values["q1_turn1"].slices == ("all", "later turns", "gold title not in query", "gold first list")
    assert values["q2_turn1"].slices[-1] == "hard questions"
    assert values["q2_turn1"].values == {"nDCG@10": 0.0, "Recall@5": 0.0, "MRR@10": 0.0}
    report = report_of(out)
    assert (report["system"], report["seed"], report["num_subqueries"], report["num_questions"]) == ("BM25", 3, 4, 2)
    assert (report["slices"]["hard questions"], report["slices"]["no leak"]) == (2, 2)
    assert report["notes"][:2] == ["4 evaluated", "missing from the run (count 0): 1 query: q2_turn1"]

    with open(out / "qrels.txt") as qrels_file, open(out / "run.txt") as run_file:
        qrels, listed = pytrec_eval.parse_qrel(qrels_file), pytrec_eval.parse_run(run_file)
    core = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(listed)
    assert {qid: item["ndcg_cut_10"] for qid, item in core.items()} == {
        qid: item.values["nDCG@10"] for qid, item in values.items() if qid in listed
    }
    assert report["means"]["nDCG@10"] == pytest.approx(sum(item.values["nDCG@10"] for item in values.values()) / 4)
    printed = capsys.readouterr().out
    assert f"nDCG@10 {report['means']['nDCG@10']:.4f}" in printed
    assert "missing from the run" in printed


def test_a_finished_evaluation_is_not_made_again(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(arguments(inputs))
    before = (inputs / "out" / "manifest.json").read_bytes()
    run(arguments(inputs))
    assert "already complete" in capsys.readouterr().out
    assert (inputs / "out" / "manifest.json").read_bytes() == before


def test_a_stopped_evaluation_goes_on_where_it_was(inputs: Path) -> None:
    config = load_program("eval", "retrieval").Config(
        examples=inputs / "heldout.jsonl",
        questions=inputs / "questions.jsonl",
        index=inputs / "index",
        system="BM25",
        searcher="bm25",
        out=inputs / "out",
    )
    paths = {name: getattr(config, name) for name in ("examples", "questions", "index")}
    with Artifact(config.out, "evaluation", config, paths):
        pass
    kept = {"subqid": "q1_turn0", "hits": [{"docid": "bergen", "score": 2.0}], "seconds": 0.5}
    (config.out / "found.jsonl").write_text(json.dumps(kept) + '\n{"subqid": "q1_tu')
    run(arguments(inputs))
    lines = (config.out / "run.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("q1_turn0 ")] == ["q1_turn0 Q0 bergen 1 2.0 agentir"]
    assert any(line.startswith("q2_turn0 Q0 oslo 1 ") for line in lines)
    assert not (config.out / "found.jsonl").exists()


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (example("q1", 5, "x", "", "gone"), "sub-query 'q1_turn5': its relevant document 'gone' is not in the index"),
        (example("q7", 0, "x", "", "mead"), "sub-query 'q7_turn0': its question 'q7' is not in the questions file"),
        (EXAMPLES[0], "sub-query 'q1_turn0': listed twice"),
        (
            example("q 1", 0, "x", "", "mead"),
            "sub-query 'q 1_turn0': TREC files cannot hold the id 'q 1_turn0', since it is empty or has white space",
        ),
        (
            example("q1", 5, "x", "", "mead", "two words"),
            "sub-query 'q1_turn5': TREC files cannot hold the id 'two words', since it is empty or has white space",
        ),
    ],
)
def test_sub_queries_that_cannot_be_evaluated_stop_it_or_are_counted(
    inputs: Path, bad: TrainingExample, text: str
) -> None:
    write_jsonl(inputs / "heldout.jsonl", [*EXAMPLES, bad])
    with pytest.raises(InputError, match=text):
        run(arguments(inputs))
    assert not (inputs / "out").exists()  # so that it can be run again once the examples are mended
    run(arguments(inputs, "--on-bad-line", "set_aside"))
    report = report_of(inputs / "out")
    assert report["num_subqueries"] == 4
    assert report["left_out"] == [text]


def test_documents_that_no_run_file_can_hold_stop_it_before_any_search(inputs: Path) -> None:
    write_jsonl(inputs / "corpus.jsonl", [*CORPUS, {"docid": "two words", "text": "Nothing that anybody looks for."}])
    build_index(inputs / "index", inputs / "corpus.jsonl")
    with pytest.raises(InputError, match=r"the index: TREC files separate .* found 1 others: 'two words'; rename them"):
        run(arguments(inputs))
    assert not (inputs / "out").exists()


TREC = """q1_turn0 Q0 fortune 1 9.5 theirs
q1_turn0 Q0 oslo 2 8 theirs
q1_turn1 Q0 elsewhere 1 3 theirs
q1_turn1 Q0 mead 2 2.5 theirs
q2_turn0 Q0 oslo 2 1 theirs
q2_turn0 Q0 bergen 1 0.5 theirs
q9_turn0 Q0 oslo 1 1 theirs
"""


def test_a_run_of_another_system_is_measured_without_a_search(
    inputs: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    run(run_file(inputs, TREC))
    assert not recwarn.list
    values = read_query_values(inputs / "out", ["MRR@10"])
    assert {subqid: item.values["MRR@10"] for subqid, item in values.items()} == {
        "q1_turn0": 1.0,
        "q1_turn1": 0.5,
        "q2_turn0": 1.0,
        "q2_turn1": 0.0,
    }
    assert values["q1_turn1"].slices == ("all", "later turns", "gold title not in query", "gold first list")
    manifest = read_manifest(inputs / "out", "evaluation")
    report = manifest["report"]
    assert report["notes"] == [
        "4 evaluated",
        "missing from the run (count 0): 1 query: q2_turn1",
        "in the run but not in the qrels (ignored): 1 query: q9_turn0",
        "the rank column disagrees with the scores (the scores count) in 1 query: q2_turn0",
        "documents of the run that the index does not hold (not relevant): 1, the first is 'elsewhere'",
    ]
    assert (report["encoder"], report["seconds"], report["ms_per_query"]) == (None, None, None)
    assert manifest["inputs"]["run"]["path"] == str(inputs / "theirs.trec")
    assert "q9_turn0" in capsys.readouterr().out
    assert (inputs / "out" / "run.txt").read_text().startswith("q1_turn0 Q0 fortune 1 9.5 external\n")


def test_a_run_of_another_system_is_compared_with_a_search(inputs: Path) -> None:
    run(arguments(inputs, "--out", str(inputs / "ours")))
    run([*run_file(inputs, TREC), "--out", str(inputs / "theirs")])
    systems = "".join(
        f'[[systems]]\nname = "{name}"\nevaluations = ["{inputs / name}"]\n' for name in ("ours", "theirs")
    )
    (inputs / "report.toml").write_text(f'out = "{inputs / "report"}"\ndifferences = [["ours", "theirs"]]\n{systems}')
    run(["eval", "report", "--config", str(inputs / "report.toml")])
    page = (inputs / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count('<td class="n">–</td></tr>') == 1  # milliseconds a query of the run made elsewhere


def test_settings_of_a_search_warn_where_a_run_is_given(inputs: Path) -> None:
    with pytest.warns(UserWarning) as warned:
        run([*run_file(inputs, TREC), "--searcher", "dense", "--k", "5"])
    assert [str(each.message) for each in warned] == [
        f"{name}: ignored, the run was made elsewhere" for name in ("searcher", "k")
    ]


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(inputs: Path) -> None:
    with pytest.raises(InputError, match=r"theirs\.trec:8: .*6 columns"):
        run(run_file(inputs, TREC + "q1_turn0 Q0 mead\n"))
    with pytest.raises(InputError, match="the run: TREC files separate"):
        run(run_file(inputs, "q1_turn0 Q0 no\u00a0break 1 1 theirs\n"))
    with pytest.raises(InputError, match=r"gone\.trec: no such file"):
        run(arguments(inputs, "--run", str(inputs / "gone.trec"), searcher=None))
    assert not (inputs / "out").exists()


def test_lines_that_do_not_fit_are_set_aside_and_counted(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(inputs / "heldout.jsonl", "a") as file:
        file.write('{"subquery": 3}\n')
    with pytest.raises(InputError, match=r"heldout\.jsonl:5"):
        run(arguments(inputs))
    run(arguments(inputs, "--on-bad-line", "set_aside"))
    assert "rejected_lines" in report_of(inputs / "out")
    assert "set aside" in capsys.readouterr().out


def test_a_folder_stands_for_its_one_file_of_examples(inputs: Path) -> None:
    folder = inputs / "examples"
    folder.mkdir()
    with pytest.raises(InputError, match="expected one JSON lines file of examples, found none"):
        run(arguments(inputs, "--examples", str(folder)))
    write_jsonl(folder / "examples.jsonl", EXAMPLES)
    write_jsonl(folder / "rejected.jsonl", [])
    run(arguments(inputs, "--examples", str(folder)))
    assert report_of(inputs / "out")["num_subqueries"] == 4


def test_settings_that_cannot_be_are_refused_and_ignored_ones_warn(inputs: Path) -> None:
    with pytest.raises(ConfigError, match=r"hits@3"):
        run(arguments(inputs, "--measures", "nDCG@10", "hits@3"))
    with pytest.raises(ConfigError, match="k: expected 1 or more"):
        run(arguments(inputs, "--k", "0"))
    with pytest.warns(UserWarning, match="input: ignored, BM25"):
        run(arguments(inputs, "--input", "query"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model of one small layer with random weights, over the words of the corpus.

    It names a prompt for queries.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    texts = " ".join([doc["text"] for doc in CORPUS] + [each.subquery.query for each in EXAMPLES])
    vocabulary = ["[PAD]", "[UNK]", *sorted({word.strip(".,") for word in texts.lower().split()})]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    folder = tmp_path_factory.mktemp("model")
    BertModel(config).save_pretrained(folder / "bare")
    tokenizer.save_pretrained(folder / "bare")
    bare = Transformer(str(folder / "bare"), max_seq_length=64)
    modules = [bare, Pooling(16), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", prompts={"query": "zebra "}).save(str(folder / "whole"))
    return folder / "whole"


@pytest.fixture
def dense_inputs(tmp_path: Path, model: Path) -> Path:
    write_jsonl(tmp_path / "corpus.jsonl", CORPUS)
    write_jsonl(tmp_path / "questions.jsonl", QUESTIONS)
    write_jsonl(tmp_path / "heldout.jsonl", EXAMPLES)
    build_index(
        tmp_path / "index", tmp_path / "corpus.jsonl", encoder=load_encoder(str(model), backend="torch"), bm25=False
    )
    return tmp_path


def dense(folder: Path, model: Path, shown: str, *more: str) -> list[str]:
    given = ("--backend", "torch", "--k", "3", "--input", shown, "--encoder", str(model))
    return arguments(folder, *given, *more, searcher="dense")


EPISODES = [
    *(each.subquery for each in EXAMPLES),
    SubQuery(qid="q2", turn=1, call=1, question="?", reasoning="Beside the other.", query="Bergen"),
    SubQuery(qid="q1", turn=2, call=0, question="?", reasoning="Too late.", query="New York"),
]
EARLIER = {
    "q1_turn1": (PastSearch(query="Reo Fortune wife", reasoning="First who she was."),),
    "q2_turn1": (PastSearch(query="opera designed by", reasoning="A capital in the north."),),
}


@pytest.mark.parametrize(
    "shown",
    ["query", "reasoning+query", "question+query", "reasoning", "question", "prior-queries+query", "history+query"],
)
def test_dense_search_gives_the_encoder_what_is_asked_for(dense_inputs: Path, model: Path, shown: str) -> None:
    write_jsonl(dense_inputs / "episodes.jsonl", reversed(EPISODES))
    history = ("--history", str(dense_inputs / "episodes.jsonl")) if shown.startswith(("prior", "history")) else ()
    run(dense(dense_inputs, model, shown, *history))
    template = replace(template_for(shown), instruction="zebra ")  # type: ignore[arg-type]
    encoder = load_encoder(str(model), backend="torch", template=template)
    subqueries = [each.subquery for each in read_records(dense_inputs / "heldout.jsonl", TrainingExample)]
    queries = [
        SearchQuery(
            query=sub.query, reasoning=sub.reasoning, question=sub.question, history=EARLIER.get(sub.subqid, ())
        )
        for sub in subqueries
    ]
    with Index.open(dense_inputs / "index") as index:
        lists = index.dense(encoder).search(queries, 3)
    expected = [(sub.subqid, hit.docid, hit.score) for sub, hits in zip(subqueries, lists, strict=True) for hit in hits]
    rows = [line.split() for line in (dense_inputs / "out" / "run.txt").read_text().splitlines()]
    assert [(row[0], row[2]) for row in rows] == [each[:2] for each in expected]
    assert [float(row[4]) for row in rows] == pytest.approx([each[2] for each in expected], abs=1e-6)
    manifest = read_manifest(dense_inputs / "out")
    assert manifest["report"]["encoder"] == encoder.describe()
    assert manifest["inputs"]["encoder"]["path"] == str(model)
    assert ("history" in manifest["inputs"]) == bool(history)


def test_an_encoder_that_reads_earlier_searches_is_given_those_of_the_examples(dense_inputs: Path, model: Path) -> None:
    asked = dense(dense_inputs, model, "prior-reasonings+query")
    with pytest.raises(ConfigError, match=r"history: missing; .*/whole reads the episode's earlier searches: give"):
        run(asked)
    extracted = dense_inputs / "subqueries"
    with pytest.raises(InputError, match="subqueries: no such file"):
        run([*asked, "--history", str(extracted)])
    config = load_program("synth", "extract").Config(trajectories=(), questions=extracted, out=extracted)
    with Artifact(extracted, "subqueries", config, {}) as artifact:
        artifact.write("subqueries.jsonl", EPISODES[1:])
        artifact.finish({})
    with pytest.raises(InputError, match="sub-query 'q1_turn0': expected the query 'Reo Fortune wife', found no such"):
        run([*asked, "--history", str(extracted)])
    write_jsonl(dense_inputs / "episodes.jsonl", EPISODES)
    run([*asked, "--history", str(dense_inputs / "episodes.jsonl")])  # what was refused binds nothing
    assert report_of(dense_inputs / "out")["num_subqueries"] == 4


def test_a_history_that_nothing_reads_warns(dense_inputs: Path, model: Path) -> None:
    write_jsonl(dense_inputs / "episodes.jsonl", EPISODES)
    history = ("--history", str(dense_inputs / "episodes.jsonl"))
    with pytest.warns(UserWarning, match=r"history: ignored, .*/whole does not read it"):
        run(dense(dense_inputs, model, "query", *history))
    with pytest.warns(UserWarning, match="history: ignored, the run was made elsewhere"):
        run([*run_file(dense_inputs, TREC), *history, "--out", str(dense_inputs / "theirs")])
