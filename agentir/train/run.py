"""Fine-tune an embedder on training examples.

    agentir train --config configs/demo/train-reasoning.toml

Reads the examples of `agentir synth build` (or Tevatron/AgentIR JSON lines) and a corpus, optionally looks for the best
learning rate and temperature on development questions, trains once a seed, and writes a folder with `seed-N/` model
folders that sentence-transformers, `agentir index build` and `agentir index serve` open. The query template is stored
in each.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentir.artifacts import Artifact
from agentir.embed.encoder import HISTORY_SLOTS
from agentir.embed.history import Histories
from agentir.errors import ConfigError, MissingExtraError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.search.documents import find_documents
from agentir.train.config import Config
from agentir.train.data import TrainingRow, digest, read_rows, refuse_dangling, refuse_shared_ids, with_history
from agentir.train.data_report import report as data_report
from agentir.train.lengths import refuse_too_long
from agentir.train.processes import is_first, joined, on_first
from agentir.train.sources import parse_source, training_sources
from agentir.train.splits import split_by_question

if TYPE_CHECKING:
    from agentir.embed.tokens import Tokenization
    from agentir.train.search import TrialResult


def main(config: Config) -> None:
    """Trains, and says where the models are."""
    with joined(config.device, config.batch_size):
        run(config)


def run(config: Config) -> None:
    """Trains, in one process or as one of several."""
    try:
        from agentir.train import base as start
        from agentir.train.evaluator import CONDITIONS
        from agentir.train.fit import Run, train_seed
        from agentir.train.search import search, trial_named, under
        from agentir.train.trainer import check_batches
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "sentence-transformers", "train") from None
    check_packages(config)
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    rows, dev_rows, documents = read_data(config, rejects)
    if not config.preview:
        check_batches(rows, config)
    index = start.open_index(config)
    model = start.load_base(config)
    tokenization = start.tokenization_of(config, model)
    check_history(config, tokenization)
    start.check_dropout(config, tokenization)
    start.check_sharding(config, model)
    if config.preview:
        preview(tokenization, rows[0], documents)
        return
    refuse_too_long([*rows, *dev_rows], tokenization)
    if index is not None:
        start.check_base(config, index, model, tokenization.template)
    passages = start.make_passages(index, documents, whole_index=start.draws_from_index(config))
    with contextlib.ExitStack() as stack:
        artifact = stack.enter_context(open_output(config, rows, dev_rows, documents)) if is_first() else None
        if on_first(lambda: artifact is not None and artifact.complete):
            print(f"{config.out}: already trained; nothing to do")
            return
        report = data_report(
            rows, dev_rows, documents, tokenization, num_negatives=config.num_negatives, keys=passages.keys
        )
        print("\n".join(report.lines()), flush=True)
        base = start.Base(model=model, passages=passages, index=index)
        trials = search(config, artifact, base, rows, dev_rows)
        tell_trials(trials)
        chosen = under(config, trial_named(config, trials[0].trial)) if trials else config
        tokenization = start.tokenization_of(chosen, model)
        settings = start.settings_of(chosen, model, config.seeds[0])
        final_rows = rows + dev_rows if config.train_on_dev else rows
        figures: dict[str, Any] = {}
        if not config.search.only:
            evaluator = None
            if not config.train_on_dev:
                evaluator = start.make_evaluator(dev_rows, tokenization, base, CONDITIONS)
            shared = Run(
                config=chosen,
                artifact=artifact,
                base=base,
                rows=final_rows,
                tokenization=tokenization,
                evaluator=evaluator,
                untrained={} if evaluator is None else on_first(lambda: evaluator(model)),
                data=report.lines(),
                searched=bool(trials),
            )
            for seed in config.seeds:
                figures[f"seed-{seed}"] = train_seed(shared, seed)
        if artifact is not None:
            made = {
                "num_rows": len(final_rows),
                "num_dev_rows": len(dev_rows),
                "data": asdict(report),
                "learning_rate": settings.learning_rate,
                "temperature": settings.temperature,
                "chosen": trials[0].trial if trials else None,
                "search": [asdict(trial) for trial in trials],
                "models": figures,
            }
            artifact.finish(made, rejects)
    if rejects.items:
        print(f"set aside: {len(rejects.items)} lines, see {config.out / 'rejected.jsonl'}")
    if config.search.only:
        print(f"searched only: {config.out / 'search.jsonl'}")
        return
    if num_left_out := max(int(figure["num_left_out"]) for figure in figures.values()):
        print(f"left out of each epoch: {num_left_out} rows, others each time, that do not fill a batch")
    print(
        f"trained {chosen.input} on {len(final_rows)} rows, {len(config.seeds)} seed(s), learning rate "
        f"{settings.learning_rate:g}, temperature {settings.temperature:g}"
    )
    print(f"models: {', '.join(str(config.out / name) for name in figures)}")


def read_data(config: Config, rejects: Rejects) -> tuple[list[TrainingRow], list[TrainingRow], dict[str, Document]]:
    """Training rows, development rows, and the documents that they name.

    Raises:
        InputError: a line does not fit, rows name documents that are nowhere, or share an id.
    """
    documents: dict[str, Document] = {}
    source, dev_source = training_sources(config.examples, config.dev)
    rows = read_rows(source, rejects, documents)
    dev_rows = read_rows(dev_source, rejects, documents) if dev_source is not None else []
    refuse_shared_ids(rows, dev_rows)
    if config.history is not None:
        histories = Histories.read(config.history, rejects)
        rows, dev_rows = with_history(rows, histories), with_history(dev_rows, histories)
    if config.corpus is not None:
        named = {docid for row in rows + dev_rows for docid in (*row.positives, *row.negatives, *row.gold, *row.pool)}
        documents |= find_documents(config.corpus, named - documents.keys(), rejects)
    rejects.check()
    refuse_dangling(rows + dev_rows, documents, str(config.corpus or source))
    if config.dev_fraction and not dev_rows:
        division = split_by_question(rows, config.dev_fraction, config.seeds[0])
        print("\n".join(division.lines()))
        train_part, dev_part = division
        return list(train_part), list(dev_part), documents
    return rows, dev_rows, documents


def check_packages(config: Config) -> None:
    """Raises:
    ConfigError: something is asked for whose package is not installed.
    """
    wanted = {"logging": config.logging} if config.logging in ("tensorboard", "wandb") else {}
    if config.distributed.deepspeed is not None:
        wanted["distributed.deepspeed"] = "deepspeed"
    for key, package in wanted.items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{key}: needs the package {package}, which is not installed: pip install {package}")


def check_history(config: Config, tokenization: Tokenization) -> None:
    """Raises:
    ConfigError: the template shows earlier searches, and nothing says what they were.
    """
    if tokenization.template.context_slot in HISTORY_SLOTS and config.history is None:
        raise ConfigError(
            f"history: missing; the input {config.input} shows what was searched before: give the folder of `agentir synth "
            "extract` that the examples were made of"
        )


def open_output(
    config: Config,
    rows: Sequence[TrainingRow],
    dev_rows: Sequence[TrainingRow],
    documents: Mapping[str, Document],
) -> Artifact:
    """The output folder, bound to the data; of rows that are no files here, their content counts."""
    source, dev_source = training_sources(config.examples, config.dev)
    given: dict[str, Path | None] = {
        "examples": config.examples if config.examples.exists() else parse_source(source).path,
        "dev": None if config.dev is None or dev_source is None else parse_source(dev_source).path,
        "corpus": config.corpus,
        "history": config.history,
        "model": Path(config.model) if Path(config.model).is_dir() else None,
    }
    inputs = {name: path for name, path in given.items() if path is not None}
    facts = {} if "examples" in inputs else {"rows": digest([*rows, *dev_rows], documents)}
    return Artifact(config.out, "model", config, inputs, facts=facts)


def tell_trials(trials: Sequence[TrialResult]) -> None:
    """Prints what the trials reached, best first."""
    for trial in trials:
        measures = ", ".join(f"{measure} {value:.4f}" for measure, value in trial.measures.items())
        print(f"{trial.trial} ({trial.num_runs} runs, {trial.deviation:.4f} between seeds): {measures}")


def preview(tokenization: Tokenization, row: TrainingRow, documents: Mapping[str, Document]) -> None:
    """Prints what the model reads of a row: the texts, their tokens, and what was shortened."""
    (query,) = tokenization.queries([row.query])
    document = documents[row.positives[0]]
    (ids,) = tokenization.documents([document])
    decode = tokenization.tokenizer.decode
    print(f"template {tokenization.template.hash[:12]}, row {row.rowid}")
    print(f"query as text: {tokenization.template.render(row.query)!r}")
    print(f"query as read{' (shortened)' if query.shortened else ''}, {len(query.ids)} tokens: {decode(query.ids)!r}")
    print(f"document as text: {tokenization.template.render_document(document)!r}")
    print(f"document as read, {len(ids)} tokens: {decode(ids)!r}")
