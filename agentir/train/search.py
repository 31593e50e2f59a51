"""Trials before the real training: sets of values, measured on questions that were not trained on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from agentir.artifacts import Artifact
from agentir.errors import ConfigError
from agentir.jsonl import read_records
from agentir.train.base import Base, make_evaluator, scoring_of, settings_of, tokenization_of
from agentir.train.config import Config, Trial
from agentir.train.data import TrainingRow
from agentir.train.evaluator import DEV_MEASURES
from agentir.train.processes import on_first
from agentir.train.splits import folds
from agentir.train.trainer import train

POINTS = "search.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a trial: on which fold (-1: the development rows) with which seed, and what it reached there.

    `values` holds the first measure of every row, for paired comparisons.
    """

    trial: str
    changes: dict[str, Any]
    fold: int
    seed: int
    num_rows: int
    measures: dict[str, float]
    values: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a trial reached: means over its runs, and the standard deviation of the first measure between seeds."""

    trial: str
    changes: dict[str, Any]
    num_runs: int
    measures: dict[str, float]
    deviation: float


def trial_named(config: Config, name: str) -> Trial:
    """The trial of that name."""
    return next(trial for trial in trials_of(config) if trial.name == name)


def trials_of(config: Config) -> list[Trial]:
    """The grid and the named trials, in the order in which they are run.

    Raises:
        ConfigError: two trials have the same name.
    """
    search = config.search
    trials = list(search.trials)
    if search.learning_rates or search.temperatures:
        rates = search.learning_rates or (config.learning_rate,)
        for rate, temperature in itertools.product(rates, search.temperatures or (None,)):
            trials.append(Trial(learning_rate=rate, temperature=temperature))
    named = [trial.model_copy(update={"name": trial.name or _name(trial)}) for trial in trials]
    names = [trial.name for trial in named]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"search.trials: expected a name of its own for each, found twice: {', '.join(sorted(repeated))}"
        )
    return named


def _name(trial: Trial) -> str:
    changes = trial.model_dump(exclude_none=True, exclude={"name"})
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in changes.items()) or "as configured"


def under(config: Config, trial: Trial | None, *, epochs: float | None = None) -> Config:
    """The configuration with a trial's values."""
    changes = trial.changes() if trial is not None else {}
    if epochs is not None and "epochs" not in changes:
        changes["epochs"] = epochs
    return config.model_copy(update=changes)


def search(
    config: Config,
    artifact: Artifact | None,
    base: Base,
    rows: Sequence[TrainingRow],
    dev_rows: Sequence[TrainingRow],
) -> list[TrialResult]:
    """Runs all trials; runs that an earlier, stopped search finished are kept.

    Args:
        config: of the program.
        artifact: where to note them; None in all processes but the first.
        base: what each starts from.
        rows: to train on.
        dev_rows: to measure on, unless folds are asked for.

    Returns:
        the trials, best first by the mean of the first measure; empty where no search is configured.

    Raises:
        ConfigError: there are no rows to measure on.
    """
    trials = trials_of(config)
    if not trials:
        return []
    splits = list(_splits(config, rows, dev_rows, base.passages.keys))
    runs = [(trial, seed, *split) for trial in trials for seed in config.search.seeds for split in splits]
    points = on_first(lambda: _kept(artifact))
    for number, (trial, seed, fold, train_rows, test_rows) in enumerate(runs, 1):
        if (trial.name, seed, fold) in points:
            continue
        name = f"trial {number} of {len(runs)}"
        point = _run(config, base, trial, seed, fold, train_rows, test_rows, name)
        points[trial.name, seed, fold] = point
        if artifact is not None:
            with artifact.append_to(POINTS) as log:
                log.append(point)
        reached = ", ".join(f"{measure} {value:.4f}" for measure, value in point.measures.items())
        print(f"{name}, {trial.name}, seed {seed}{f', fold {fold}' if fold >= 0 else ''}: {reached}", flush=True)
    results = [_result(trial, [point for point in points.values() if point.trial == trial.name]) for trial in trials]
    return sorted(results, key=lambda result: -result.measures[DEV_MEASURES[0]])


def _kept(artifact: Artifact | None) -> dict[tuple[str, int, int], Point]:
    """The runs that an earlier search finished."""
    assert artifact is not None
    path = artifact.include(POINTS)
    with artifact.append_to(POINTS):
        return {(point.trial, point.seed, point.fold): point for point in read_records(path, Point)}


def _splits(
    config: Config, rows: Sequence[TrainingRow], dev_rows: Sequence[TrainingRow], keys: Mapping[str, str]
) -> Iterator[tuple[int, list[TrainingRow], list[TrainingRow]]]:
    """Numbers of folds, the rows to train on and the rows to measure on."""
    if config.search.folds == 0:
        if not dev_rows:
            raise ConfigError(
                "search: needs development rows; make them with `agentir synth build --dev-fraction 0.2`, give dev, or set "
                "search.folds"
            )
        yield -1, list(rows), list(dev_rows)
        return
    everything = [*rows, *dev_rows]
    division = folds(everything, config.search.folds, seed=0, keys=keys)
    for number, part in enumerate(division):
        yield number, division.rest(number), list(part)


def _run(
    config: Config,
    base: Base,
    trial: Trial,
    seed: int,
    fold: int,
    rows: Sequence[TrainingRow],
    test_rows: Sequence[TrainingRow],
    name: str,
) -> Point:
    changed = under(config, trial, epochs=config.search.epochs)
    tokenization = tokenization_of(changed, base.model)
    evaluator = make_evaluator(test_rows, tokenization, base)
    assert evaluator is not None
    settings = settings_of(changed, base.model, seed)
    model = base.fresh(changed, seed)
    figures = train(
        model,
        rows,
        tokenization,
        base.passages,
        settings,
        evaluator=evaluator,
        scoring=scoring_of(model),
        name=name,
    )
    return Point(
        trial=trial.name,
        changes=trial.model_dump(exclude_none=True, exclude={"name"}),
        fold=fold,
        seed=seed,
        num_rows=len(test_rows),
        measures={key.removeprefix("dev_"): value for key, value in figures.items() if key.startswith("dev_")},
        values=evaluator.values,
        seconds=figures["seconds"],
    )


def _result(trial: Trial, points: Sequence[Point]) -> TrialResult:
    total = sum(point.num_rows for point in points)
    measures = {
        measure: sum(point.measures[measure] * point.num_rows for point in points) / total
        for measure in points[0].measures
    }
    by_seed: dict[int, list[Point]] = {}
    for point in points:
        by_seed.setdefault(point.seed, []).append(point)
    means = [fmean(value for point in group for value in point.values.values()) for group in by_seed.values()]
    return TrialResult(
        trial=trial.name,
        changes=points[0].changes,
        num_runs=len(points),
        measures=measures,
        deviation=stdev(means) if len(means) > 1 else 0.0,
    )
