"""Tables and one HTML page from evaluations.

    agentir eval report --config configs/demo/report.toml

Compares systems over the sub-queries that all of them were evaluated on. Writes report.json (one row a number: system,
slice, measure, mean, low, high, num), report.md, and report.html: one file that needs nothing else, not even a network.
Intervals are 95 % bootstrap intervals over questions. Several evaluations of one system (seeds) are averaged for each
sub-query.

    title = "Does reasoning help?"
    measures = ["nDCG@10", "Recall@5"]
    differences = [["reasoning + query", "query"]]
    out = "runs/report"

    [[systems]]
    name = "query"
    evaluations = ["runs/eval/query_seed1", "runs/eval/query_seed2"]

    [[systems]]
    name = "reasoning + query"
    evaluations = ["runs/eval/reasoning_seed1", "runs/eval/reasoning_seed2"]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
from tqdm import tqdm  # type: ignore[import-untyped]

from agentir import __version__
from agentir.artifacts import Artifact, read_manifest
from agentir.config import Field, ProgramConfig, Section
from agentir.errors import ConfigError
from agentir.jsonl import Rejects
from agentir.measures.bootstrap import LEVEL, NUM_RESAMPLES
from agentir.measures.comparison import Comparison, Row, compare, difference_name, is_clear
from agentir.measures.query_values import QueryValues, mean_over_seeds, read_query_values
from agentir.measures.ranking import MEASURES, measure_names
from agentir.measures.slices import ALL

TEMPLATE = "report.html.j2"


class System(Section):
    """A system of the report."""

    name: str
    """How the report calls it."""
    evaluations: tuple[Path, ...]
    """Its evaluations, one a seed."""


class Config(ProgramConfig):
    """What to compare."""

    systems: tuple[System, ...]
    """Tables with a name and the paths of evaluations; the order is kept."""
    title: str = "Retrieval evaluation"
    """The title of the page."""
    differences: tuple[tuple[str, str], ...] = ()
    """Pairs [A, B] of systems; the difference A minus B gets an interval. The first pair makes the headline."""
    measures: tuple[str, ...] = MEASURES
    """What to report; the first makes the headline. Every evaluation must have measured them."""
    num_resamples: int = Field(NUM_RESAMPLES, le=1_000_000)
    """Draws of the bootstrap."""
    seed: int = Field(0, ge=0)
    """Of the draws."""
    notes: str = ""
    """Plain text to show on the page."""


def main(config: Config) -> None:
    """Writes one report."""
    check(config)
    measures = measure_names(config.measures)
    folders = {label: path for system in config.systems for label, path in labelled(system)}
    manifests = {label: read_manifest(path, "evaluation") for label, path in folders.items()}
    rejects = Rejects(set_aside=config.on_bad_line == "set_aside")
    evaluations = {
        label: read_query_values(path, measures, rejects) for label, path in tqdm(folders.items(), desc="reading")
    }
    rejects.check()
    systems, cautions = average(config, evaluations)
    comparison = compare(systems, measures, config.differences, num_resamples=config.num_resamples, seed=config.seed)
    cautions += [f"{name}: {leaves_out(ids)}" for name, ids in comparison.left_out.items() if ids]
    cautions += differing_inputs(manifests)
    findings = list(headline(comparison, config.differences, measures[0]))
    num, num_questions = comparison.slices[ALL]
    with Artifact(config.out, "report", config, folders) as artifact:
        if artifact.complete:
            print(f"{config.out}: already complete")
            return
        rows = [asdict(row) for row in (*comparison.rows, *comparison.differences)]
        artifact.write_text("report.json", json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        artifact.write_text("report.md", markdown(config, comparison, measures, findings, cautions))
        artifact.write_text(
            "report.html", page(config, comparison, measures, findings, cautions, evaluations, manifests)
        )
        counts = {"num_subqueries": num, "num_questions": num_questions}
        artifact.finish({**counts, "findings": findings, "cautions": cautions}, rejects)
    print(f"{len(systems)} systems over {num} sub-queries of {num_questions} questions")
    for text in (*findings, *cautions):
        print(f"  {text}")
    print(f"  -> {config.out / 'report.html'}")


def check(config: Config) -> None:
    """Refuses a configuration that names no system, a system twice, or a pair of unknown systems."""
    names = [system.name for system in config.systems]
    if not names:
        raise ConfigError("systems: expected at least one table with name and evaluations, found none")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"systems: {repeated[0]!r} is named twice; list all its evaluations in one table")
    for system in config.systems:
        if not system.evaluations:
            raise ConfigError(f"systems: {system.name!r}: expected at least one evaluation, found none")
    for pair in config.differences:
        if unknown := [name for name in pair if name not in names]:
            raise ConfigError(f"differences: unknown system {unknown[0]!r}; known: {', '.join(names)}")
        if pair[0] == pair[1]:
            raise ConfigError(f"differences: expected two different systems, found {pair[0]!r} twice")
    if config.num_resamples < 1:
        raise ConfigError(f"num_resamples: expected 1 or more, found {config.num_resamples}")


def labelled(system: System) -> Iterator[tuple[str, Path]]:
    """The evaluations of a system, each under a name of its own."""
    for number, path in enumerate(system.evaluations, 1):
        yield f"{system.name}, evaluation {number}", path


def average(
    config: Config, evaluations: Mapping[str, Mapping[str, QueryValues]]
) -> tuple[dict[str, dict[str, QueryValues]], list[str]]:
    """The values of each system, averaged over its seeds, and a text for whatever a seed lacks."""
    systems, cautions = {}, []
    measures = measure_names(config.measures)
    for system in config.systems:
        seeds = {label: evaluations[label] for label, _ in labelled(system)}
        systems[system.name], unpaired = mean_over_seeds(seeds, measures)
        cautions += [f"{label}: {leaves_out(ids)}" for label, ids in unpaired.items() if ids]
    return systems, cautions


def leaves_out(ids: Sequence[str]) -> str:
    """That sub-queries were left out, with the first of their ids."""
    what = "1 sub-query" if len(ids) == 1 else f"{len(ids)} sub-queries"
    return (
        f"{what} left out, since another evaluation lacks them: {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}"
    )


def differing_inputs(manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A text for each input that should be the same in all evaluations and is not."""
    for name in ("examples", "questions"):
        if len({manifest["inputs"][name]["fingerprint"] for manifest in manifests.values()}) > 1:
            yield f"the evaluations were made from different {name} files; only shared sub-queries are compared"


def headline(comparison: Comparison, pairs: Sequence[tuple[str, str]], measure: str) -> Iterator[str]:
    """The main finding in words: one sentence, or up to three where a difference was asked for."""
    num, num_questions = comparison.slices[ALL]
    over = f"over {num} sub-queries of {num_questions} questions"
    means = {row.system: row for row in comparison.rows if row.slice == ALL and row.measure == measure}
    if not pairs:
        best = max(means.values(), key=lambda row: row.mean)
        lead = "" if len(means) == 1 else "The highest mean: "
        yield f"{lead}“{best.system}” reaches {measure} {best.mean:.3f} [{best.low:.3f}, {best.high:.3f}] {over}."
        return
    a, b = pairs[0]
    name = difference_name(a, b)
    by_slice = {row.slice: row for row in comparison.differences if row.system == name and row.measure == measure}
    whole = by_slice.pop(ALL)
    numbers = f"{measure} {means[a].mean:.3f} against {means[b].mean:.3f}, a difference of {signed(whole)} {over}."
    if not is_clear(whole):
        yield f"No clear difference between “{a}” and “{b}”: {numbers}"
    else:
        yield f"“{a}” is {'better' if whole.mean > 0 else 'worse'} than “{b}”: {numbers}"
    clear = [row for row in by_slice.values() if is_clear(row)]
    if clear:
        most = max(clear, key=lambda row: abs(row.mean))
        if abs(most.mean) > abs(whole.mean):
            yield f"It is largest on “{most.slice}”: {signed(most)}, {most.num} sub-queries."
    if unclear := [row.slice for row in by_slice.values() if not is_clear(row)]:
        yield f"The interval holds 0 on {', '.join(f'“{name}”' for name in unclear)}."


def signed(difference: Row) -> str:
    """A difference with its interval."""
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def markdown(
    config: Config, comparison: Comparison, measures: Sequence[str], findings: Sequence[str], cautions: Sequence[str]
) -> str:
    """The report as Markdown: a table of means and one of differences a measure."""
    lines = [f"# {flat(config.title)}", "", *(flat(text) + "  " for text in findings), ""]
    if config.notes:
        lines += [*(f"> {flat(line)}" for line in config.notes.splitlines()), ""]
    tables = (
        ("", comparison.rows, "{:.3f} [{:.3f}, {:.3f}]"),
        (" differences", comparison.differences, "{:+.3f} [{:+.3f}, {:+.3f}]"),
    )
    for measure in measures:
        for suffix, rows, form in tables:
            kept = [row for row in rows if row.measure == measure]
            if not kept:
                continue
            columns = list(dict.fromkeys(row.system for row in kept))
            cells = {(row.slice, row.system): form.format(row.mean, row.low, row.high) for row in kept}
            lines += [f"## {measure}{suffix}", "", f"| slice | sub-queries | {' | '.join(map(flat, columns))} |"]
            lines.append("|---|---|" + "---|" * len(columns))
            for name, (num, _) in comparison.slices.items():
                lines.append(f"| {flat(name)} | {num} | {' | '.join(cells[name, column] for column in columns)} |")
            lines.append("")
    lines.append(
        f"{LEVEL:.0%} intervals: percentiles of {config.num_resamples} bootstrap resamples of questions, paired."
    )
    lines += [f"- {flat(text)}" for text in cautions]
    return "\n".join(lines) + "\n"


def flat(text: str) -> str:
    """A text that cannot break out of its line or table cell, nor be taken for HTML."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def shown(value: Any) -> str:
    """A value of a manifest, as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def page(
    config: Config,
    comparison: Comparison,
    measures: Sequence[str],
    findings: Sequence[str],
    cautions: Sequence[str],
    evaluations: Mapping[str, Mapping[str, QueryValues]],
    manifests: Mapping[str, Mapping[str, Any]],
) -> str:
    """The page as one HTML text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    pairs = {difference_name(a, b): (a, b) for a, b in config.differences}
    data = {
        "systems": [system.name for system in config.systems],
        "measures": measures,
        "slices": [{"name": name, "num": num, "questions": n} for name, (num, n) in comparison.slices.items()],
        "rows": [asdict(row) for row in comparison.rows],
        "differences": [
            {**asdict(row), "pair": pairs[row.system], "clear": is_clear(row)} for row in comparison.differences
        ],
        "tallies": [asdict(tally) for tally in comparison.tallies],
    }
    return environment.get_template(TEMPLATE).render(
        title=config.title,
        notes=config.notes,
        findings=findings,
        cautions=cautions,
        measures=measures,
        slices=comparison.slices,
        rows=(*comparison.rows, *comparison.differences),
        evaluations=[
            {
                "label": label if len(system.evaluations) > 1 else system.name,
                "path": str(path),
                "manifest": manifests[label],
                "num": len(evaluations[label]),
                "means": {
                    measure: sum(item.values[measure] for item in evaluations[label].values()) / len(evaluations[label])
                    for measure in measures
                },
            }
            for system in config.systems
            for label, path in labelled(system)
        ],
        num_resamples=config.num_resamples,
        seed=config.seed,
        level=f"{LEVEL:.0%}",
        version=__version__,
        data=data,
    )
