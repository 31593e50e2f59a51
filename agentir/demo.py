"""The whole way on the sample data: from recorded trajectories to a measured, served, reasoning-aware retriever.

    agentir demo

Runs the programs that users run on their own data, with the files in `configs/demo/`, inside the folder `out`. What is
there is kept: a second run takes seconds, and one that was stopped continues.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentir import sample
from agentir.config import Section
from agentir.errors import ArtifactError
from agentir.jsonl import Rejects, iter_objects

SAMPLE: tuple[sample.Name, ...] = ("corpus", "questions", "trajectories", "oracle_answers")
SMALL_EPISODES = {"train": 40, "heldout": 12}
"""Episodes of each split that the small demo keeps, with the passages that their oracle saw."""
TRAINED = ("query", "question", "reasoning")
SMALL_TRAINING = ["--search.epochs", "0.25", "--search.learning-rates", "1e-4", "2e-4", "--search.temperatures", "0.05"]


class Config(Section):
    """Where and how large."""

    out: Path = Path("work/demo")
    """The folder for everything that is made."""
    small: bool = False
    """A part of the data and short training, to see that all works in a few minutes; its numbers mean little."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One program with its arguments; it runs in the demo's folder."""

    name: str
    arguments: tuple[str, ...]


def main(config: Config) -> None:
    """Runs the stages, each timed, and prints the table and the commands to go on with."""
    began = time.perf_counter()
    write_sample(config.out / "sample", small=config.small)
    timings: list[tuple[str, float, float]] = []
    planned = stages(os.path.relpath(configs_folder(), config.out), small=config.small)
    print(f"cd {config.out}")
    for number, stage in enumerate(planned, start=1):
        print(f"\n[{number}/{len(planned)}] {stage.name}\n$ agentir {shlex.join(stage.arguments)}", flush=True)
        start = time.perf_counter()
        peak = run_stage(stage, config.out)
        timings.append((stage.name, time.perf_counter() - start, peak))
        print(f"  {timings[-1][1]:.1f} s, {peak:.2f} GB", flush=True)
    print("\n seconds   GB  (peak memory)")
    for name, seconds, peak in timings:
        print(f"{seconds:8.1f} {peak:4.2f}  {name}")
    print(f"{time.perf_counter() - began:8.1f} {max(peak for _, _, peak in timings):4.2f}  in all")
    print_table(json.loads((config.out / "report/report.json").read_text(encoding="utf-8")))
    print_next(config.out)


def run_stage(stage: Stage, folder: Path) -> float:
    """Runs a program as a process of its own, so that its memory is free again before the next; returns its peak in GB.

    Raises:
        SystemExit: it failed, and has said why.
    """
    process = subprocess.Popen([sys.executable, "-m", "agentir", *stage.arguments], cwd=folder)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        print(f"{stage.name}: failed; what is finished is kept, run the demo again to continue", file=sys.stderr)
        raise SystemExit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def configs_folder() -> Path:
    """The demo's configuration files: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs" / "demo", package.parent / "configs" / "demo"):
        if folder.is_dir():
            return folder
    raise ArtifactError(f"{package}: expected the configuration files of the demo beside the package, found none")


def stages(configs: str, *, small: bool) -> list[Stage]:
    """The programs in order, with their arguments."""

    def config(name: str) -> list[str]:
        return ["--config", f"{configs}/{name}.toml"]

    def evaluate(system: str, out: str, *arguments: str) -> Stage:
        given = ["--system", system, "--out", f"evaluations/{out}", *arguments]
        return Stage(f"evaluate: {system}", ("eval", "retrieval", *config("evaluate"), *given))

    plan = [
        Stage("extract sub-queries", ("synth", "extract", *config("extract"))),
        Stage("parse the oracle's answers", ("synth", "label", *config("label"))),
        Stage("build training examples", ("synth", "build", *config("build"))),
        Stage("encode and index the corpus", ("index", "build", *config("index"))),
    ]
    for kind in TRAINED:
        plan.append(Stage(f"train: {kind}", ("train", *config(f"train-{kind}"), *(SMALL_TRAINING if small else ()))))
    inputs = {"query": "query", "question": "question+query", "reasoning": "reasoning+query"}
    for kind in ("query", "reasoning"):
        system = "query" if kind == "query" else f"{kind} + query"
        plan.append(
            evaluate(f"{system}, untrained", f"{kind}-untrained", "--input", inputs[kind], "--max-tokens", "160")
        )
    for kind in TRAINED:
        system = "query" if kind == "query" else f"{kind} + query"
        plan.append(
            evaluate(f"{system}, trained", f"{kind}-trained", "--encoder", f"models/{kind}/seed-1", "--seed", "1")
        )
    short = ("--encoder", "models/reasoning/seed-1", "--seed", "1", "--max-tokens", "64")
    plan.append(evaluate("reasoning + query, trained, 64 tokens", "reasoning-trained-64-tokens", *short))
    plan.append(Stage("report", ("eval", "report", *config("report"))))
    return plan


def write_sample(folder: Path, *, small: bool) -> None:
    """Puts the sample data into the demo's folder, where the configuration files look for it.

    Raises:
        ArtifactError: the folder holds the sample of the other size.
    """
    marker = folder / "size.txt"
    size = "small" if small else "full"
    if marker.is_file():
        if (found := marker.read_text().strip()) != size:
            raise ArtifactError(f"{folder.resolve().parent}: holds the {found} demo; name another out folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if small:
        write_small_sample(folder)
    else:
        for name in SAMPLE:
            shutil.copyfile(sample.path(name), folder / f"{name}.jsonl.gz")
    marker.write_text(size + "\n")


def write_small_sample(folder: Path) -> None:
    """The first episodes of each split, their questions and oracle answers, and the passages that the oracle saw."""
    data = {name: [value for _, value in iter_objects(sample.path(name), Rejects())] for name in SAMPLE}
    split = {question["qid"]: question["split"] for question in data["questions"]}
    left = dict(SMALL_EPISODES)
    qids = set()
    for episode in data["trajectories"]:
        if left[split[episode["qid"]]] > 0:
            left[split[episode["qid"]]] -= 1
            qids.add(episode["qid"])
    kept = {name: [value for value in data[name] if value.get("qid") in qids] for name in SAMPLE}
    docids = {docid for answer in kept["oracle_answers"] for docid in answer["candidates"]}
    docids |= {docid for question in kept["questions"] for docid in question["gold_docids"]}
    kept["corpus"] = [document for document in data["corpus"] if document["docid"] in docids]
    for name, values in kept.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows over all held-out sub-queries, a line a system or difference."""
    shown = [row for row in rows if row["slice"] == "all"]
    measures = list(dict.fromkeys(row["measure"] for row in shown))
    systems = list(dict.fromkeys(row["system"] for row in shown))
    width = max(len(system) for system in systems)
    print(f"\nHeld-out sub-queries ({shown[0]['num']}), mean and 95 % interval over questions")
    print(" " * width + "".join(f"  {measure:>22}" for measure in measures))
    cells = {(row["system"], row["measure"]): row for row in shown}
    for system in systems:
        line = ""
        for measure in measures:
            row = cells[system, measure]
            line += f"  {row['mean']:>7.3f} [{row['low']:.3f}, {row['high']:.3f}]".rjust(24)
        print(f"{system:<{width}}{line}")


def print_next(out: Path) -> None:
    """The commands to serve and search what was made."""
    index, encoder = out / "index", out / "models/reasoning/seed-1"
    reasoning = (
        "The song's performer is Gordon Lightfoot. What is still missing is when he was born, so I need his biography."
    )
    print(f"\nThe page: {out / 'report/report.html'}   the table: {out / 'report/report.json'}")
    print("\nServe it to agents (MCP and REST):")
    print(f"  agentir index serve --index {index} --encoder {encoder}")
    print("Search it:")
    print(f"  agentir index search --index {index} --encoder {encoder} \\")
    print(f"      --reasoning {shlex.quote(reasoning)} --query 'Gordon Lightfoot born'")
