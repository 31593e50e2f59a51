"""Makes training examples of rankings: the oracle's first is the positive, its last are the hard negatives.

    agentir synth build --rankings data/rankings --questions questions.jsonl --corpus index/ --out data/examples

Writes train.jsonl, dev.jsonl and heldout.jsonl (examples by id), the training rows with their texts in the chosen formats,
and CARD.md, which tells how all of it was made. The formats are tevatron (tevatron.jsonl, as Tevatron and AgentIR read it),
sentence-transformers (sentence-transformers.jsonl with anchor, positive, negative_1 ...), both of training questions only,
and datasets (a folder with all sides for `datasets.load_dataset`).

Where the oracle ranked a part of its list only, a hard negative stands in the worse half of the list. A gold document of
the same question, or of any held-out or development question, is never one, and neither is a document with the text of one
of these or of a positive, or another chunk of a positive's document. A ranking is left out where its positive is, or has
the text of, gold that its side must not train to find: for a training question that of held-out and development
questions, for a development question that of held-out questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agentir.artifacts import MANIFEST, Artifact, read_manifest
from agentir.config import Field, ProgramConfig
from agentir.corpus.qa import read_questions
from agentir.drsynth.columns import TEMPLATE, column_rows
from agentir.drsynth.data_card import CARD, data_card
from agentir.drsynth.examples import ExampleRules, ExampleSet, GoldGuard, make_examples
from agentir.drsynth.gold import resolve_gold
from agentir.drsynth.report import describe_examples
from agentir.drsynth.splits import SPLITS, Split, split_questions
from agentir.drsynth.tevatron import tevatron_row
from agentir.errors import AgentirError
from agentir.jsonl import Rejects, read_records
from agentir.records import Document, QAItem, Ranking
from agentir.search.documents import find_documents

RANKINGS = "rankings.jsonl"
LEFT_OUT = (
    "rerank_failed",
    "rankings_of_unknown_questions",
    "positive_is_heldout_gold",
    "partly_ranked_lists",
    "below_min_agreement",
    "over_max_per_question",
)
Format = Literal["tevatron", "sentence-transformers", "datasets"]


class Config(ProgramConfig, ExampleRules):
    """What examples are made of, and how."""

    rankings: Path
    """The artifact of `agentir synth label`."""
    questions: Path
    """The questions of the rankings, in any layout that `synth extract` reads; a `split` (train, dev, heldout) given there
    is kept."""
    corpus: Path
    """Where the texts are: an index folder, the corpus as JSON lines (also .gz), or a BEIR folder."""
    heldout_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the questions without a given split to hold out; questions that share gold documents stay together."""
    dev_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the training questions to set apart for choosing between models, cut in the same way."""
    formats: tuple[Format, ...] = ("tevatron",)
    """What is written beside the examples by id: tevatron, sentence-transformers, datasets (needs the extra `train`)."""


def main(config: Config) -> None:
    """Reads rankings, splits the questions, makes the examples, and reports everything that was kept out."""
    if "datasets" in config.formats:
        import agentir.drsynth.parquet  # noqa: F401  # tells before any work that its package is missing
    read_manifest(config.rankings, "rankings")
    rankings = list(read_records(config.rankings / RANKINGS, Ranking))
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    # What does not fit in the corpus is noted below, where the documents are read.
    items, found_by_name = resolve_gold(read_questions(config.questions, rejects), config.corpus, Rejects())
    questions = {item.qid: item for item in items}
    gold = {docid for item in questions.values() for docid in item.gold_docids}
    shown = {docid for ranking in rankings for docid in ranking.order}
    documents = find_documents(config.corpus, shown | gold, rejects)
    usable = _without_dangling(config, rankings, documents, rejects)
    rejects.check()
    splits = split_questions(
        list(questions.values()),
        heldout_fraction=config.heldout_fraction,
        dev_fraction=config.dev_fraction,
        seed=config.seed,
    )
    guard = GoldGuard(questions.values(), splits, documents)
    inputs = {"rankings": config.rankings, "questions": config.questions, "corpus": config.corpus}
    with Artifact(config.out, "examples", config, inputs=inputs) as artifact:
        if artifact.complete:
            print(f"{config.out}: complete already")
            return
        made = make_examples(usable, guard, splits, config)
        if not any(made.examples.values()):
            raise AgentirError(_none(config, len(rankings), made, len(rejects.items)))
        for split in SPLITS:
            artifact.write(f"{split}.jsonl", made.examples[split])
        report: dict[str, Any] = {
            "rankings": len(rankings),
            **made.counts,
            "questions": {split: sum(side == split for side in splits.values()) for split in SPLITS},
            "questions_without_gold": sum(not item.gold_docids for item in questions.values()),
            "gold_docids_not_in_corpus": sorted(gold - documents.keys()),
            "gold_by_name": found_by_name,
            **_write_training_rows(config, artifact, made, documents),
            **{split: _describe(made, split, questions, config.num_negatives) for split in SPLITS},
        }
        card = data_card(artifact.config, artifact.inputs, artifact.upstream, report, len(rejects.items))
        artifact.write_text(CARD, card)
        if "datasets" in config.formats:
            _write_datasets(artifact, made, documents, card)
        artifact.finish(report, rejects)
    _tell(config.out, report, len(rejects.items))


def _none(config: Config, num_rankings: int, made: ExampleSet, num_set_aside: int) -> str:
    """Why there are no examples at all."""
    reasons = [f"{count} {name.replace('_', ' ')}" for name, count in made.counts.items() if count]
    if num_set_aside:
        reasons.append(f"{num_set_aside} faults of lines set aside")
    told = "; ".join([f"{num_rankings} rankings", *reasons])
    return f"{config.rankings}: no training examples: {told}; the counts in {config.rankings / MANIFEST} say more"


def _without_dangling(
    config: Config, rankings: Sequence[Ranking], documents: Mapping[str, Document], rejects: Rejects
) -> list[Ranking]:
    """The rankings of which every document has a text; the others go to the rejects."""
    usable = []
    for line, ranking in enumerate(rankings, start=1):
        if dangling := [docid for docid in ranking.order if docid not in documents]:
            rejects.add(config.rankings / RANKINGS, line, "order", f"ids of documents in {config.corpus}", dangling)
        else:
            usable.append(ranking)
    return usable


def _write_training_rows(
    config: Config, artifact: Artifact, made: ExampleSet, documents: Mapping[str, Document]
) -> dict[str, Any]:
    """Writes the rows of the training questions, and of no others; returns what the report says of them."""
    examples = made.examples["train"]
    said: dict[str, Any] = {}
    if "tevatron" in config.formats:
        # A row without negatives would stop Tevatron, which draws them with replacement.
        rows = (tevatron_row(example, documents) for example in examples if example.negative_docids)
        said["tevatron_rows"] = artifact.write("tevatron.jsonl", rows)
    if "sentence-transformers" in config.formats:
        columns = (row for example in examples for row in column_rows(example, documents, config.num_negatives))
        said["sentence_transformers_rows"] = artifact.write("sentence-transformers.jsonl", columns)
        said["sentence_transformers_examples_with_too_few_negatives"] = sum(
            len(example.negative_docids) < config.num_negatives for example in examples
        )
        said["sentence_transformers_template"] = TEMPLATE.hash
    return said


def _write_datasets(artifact: Artifact, made: ExampleSet, documents: Mapping[str, Document], card: str) -> None:
    """Writes the folder, each side in a file of its own, and the card as its README; `datasets` reads no empty side."""
    from agentir.drsynth.parquet import front_matter, write_parquet

    folder = artifact.include("datasets")
    folder.mkdir(exist_ok=True)
    files: dict[str, str] = {}
    for split in (split for split in SPLITS if made.examples[split]):
        files[split] = f"{split}.parquet"
        write_parquet(folder / files[split], made.examples[split], documents)
    artifact.write_text("datasets/README.md", front_matter(files) + card)


def _describe(made: ExampleSet, split: Split, questions: Mapping[str, QAItem], num_negatives: int) -> dict[str, Any]:
    negatives = [len(example.negative_docids) for example in made.examples[split]]
    return {
        **describe_examples(made.examples[split], questions, made.ranked_shares[split]),
        "passed_over_as_negatives": dict(made.passed_over[split]),
        "with_fewer_negatives": sum(0 < number < num_negatives for number in negatives),
        "without_negatives": sum(number == 0 for number in negatives),
    }


def _tell(out: Path, report: Mapping[str, Any], num_set_aside: int) -> None:
    sizes = ", ".join(f"{report[split]['examples']} {split}" for split in SPLITS)
    print(f"{sizes} examples of {report['rankings']} rankings -> {out}")
    for name in LEFT_OUT:
        print(f"  {name.replace('_', ' ')}: {report[name]}")
    for name in (
        "tevatron_rows",
        "sentence_transformers_rows",
        "sentence_transformers_examples_with_too_few_negatives",
    ):
        if name in report:
            print(f"  {name.replace('_', ' ')}: {report[name]}")
    train = report["train"]
    reasons = ", ".join(
        f"{count} {reason.replace('_', ' ')}" for reason, count in train["passed_over_as_negatives"].items()
    )
    print(f"  training documents passed over as negatives: {reasons or 'none'}")
    print(f"  training examples with fewer negatives: {train['with_fewer_negatives']}")
    print(f"  training examples without negatives: {train['without_negatives']}")
    print(f"  training examples whose query or reasoning holds the answer: {train['leaks'] or 0:.1%}")
    for name, count in report["gold_by_name"].items():
        print(f"  {name.replace('_', ' ')}: {count}")
    print(f"  gold documents that the corpus lacks: {len(report['gold_docids_not_in_corpus'])}")
    print(f"  lines set aside: {num_set_aside}; all counts are in {out / MANIFEST}")
