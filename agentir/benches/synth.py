"""Rollouts and labels from a model that answers after a fixed time, and how soon a stopped rollout goes on.

The programs `agentir synth rollout` and `agentir synth label` run as users run them, each in a process of its own, against
the server of `agentir.benches.endpoint`. Their speed is what the server sees from two latencies after the first call until
nothing waits to be begun; the most that is possible are the calls in flight over the latency. Processor time and memory are
those of the whole program, its start and end included; of labelling, what the same command takes without a model, which
makes the same lists, is not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from tqdm import tqdm  # type: ignore[import-untyped]

from agentir import sample
from agentir.benches.endpoint import BenchServer, Call
from agentir.benches.rows import BenchRow
from agentir.drsynth.episodes import EPISODES, FINISHED, EpisodeStore
from agentir.errors import AgentirError
from agentir.jsonl import Rejects, dumps, iter_objects, read_records, write_jsonl
from agentir.records import Trajectory

GOAL_RATIO, GOAL_MEGABYTES, GOAL_MILLISECONDS, GOAL_RESUME_SECONDS = 0.95, 500, 4.0, 2.0
NUM_UNENTERED = 2
"""Episodes that the kill left without their line in the list of finished ones; a third one is torn."""
RESUME_TURNS = 4
"""Turns of the finished episodes of the resume case, which makes lines of about 20 kB."""
SHORT_LATENCY = 0.02
"""Of the server while the resume case is prepared, where nothing is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is run.

    Attributes:
        latency: seconds from a request to its answer.
        num_at_once: episodes under way, and requests in flight.
        num_questions: episodes.
        num_turns: generations of each, the last one the answer.
        num_documents: of the index that is searched.
        depth: candidates of a list to be ranked.
        num_finished: episodes before the resume.
    """

    latency: float = 2.0
    num_at_once: int = 256
    num_questions: int = 512
    num_turns: int = 8
    num_documents: int = 200
    depth: int = 20
    num_finished: int = 10_000

    @property
    def ideal(self) -> float:
        """The most calls a second."""
        return self.num_at_once / self.latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a program; its own processor time is what the calls took, without what the program does besides."""

    calls_per_second: float
    milliseconds_per_call: float
    milliseconds_in_all: float
    megabytes: float


def bench_synth(runs: int, load: Load | None = None) -> list[BenchRow]:
    """Measures rollouts, labelling, rollouts over the whole sample corpus, and resuming."""
    load = load or Load()
    with tempfile.TemporaryDirectory(prefix="agentir-bench-") as scratch, tqdm(total=3 * runs + 1, unit="run") as bar:
        folder = Path(scratch)
        _prepare(folder, load)
        rollouts, labels, resumes = [], [], []
        for number in range(runs):
            bar.set_description("rollout")
            rollouts.append(_rollout(folder / f"rollout{number}", folder / "small", load))
            bar.update()
        _extract(folder, "rollout0")
        for number in range(runs):
            bar.set_description("label")
            labels.append(_label(folder / f"label{number}", load))
            bar.update()
        bar.set_description("rollout, whole sample corpus")
        whole = _rollout(folder / "rollout-whole", folder / "whole", load)
        bar.update()
        stopped = _stopped_rollout(folder, load)
        for _ in range(runs):
            bar.set_description("resume")
            resumes.append((stopped.resume(), stopped.open_store(), stopped.read_every_line()))
            bar.update()
    return [
        *_rows("rollout", f"CPU a call, index of {load.num_documents} documents", rollouts, load),
        _row("rollout, CPU a call, index of the whole sample corpus, one run", whole.milliseconds_per_call, "ms/call"),
        *_rows("label", "CPU a call, making the lists not counted", labels, load),
        _row("label, CPU a call, making the lists counted", _median(labels, "milliseconds_in_all"), "ms/call"),
        *_resume_rows(resumes, load),
    ]


def _median(measured: Sequence[Measured], name: str) -> float:
    values: list[float] = [getattr(one, name) for one in measured]
    return median(values)


def _row(
    case: str, value: float, unit: str, baseline: tuple[str, float, float] | None = None, most: float | None = None
) -> BenchRow:
    """A case of which less is better; a baseline is its name, value and ratio, `most` the goal."""
    name, baseline_value, ratio = baseline or ("none", None, None)
    return BenchRow(
        bench="synth",
        case=case,
        value=value,
        unit=unit,
        baseline=name,
        baseline_value=baseline_value,
        ratio=ratio,
        goal="" if most is None else f"value < {most:g}",
        met=None if most is None else value < most,
    )


def _rows(program: str, processor_case: str, measured: Sequence[Measured], load: Load) -> list[BenchRow]:
    """Speed, memory and processor time of a program."""
    rate = _median(measured, "calls_per_second")
    speed = BenchRow(
        bench="synth",
        case=f"{program}, {load.num_at_once} at once, {load.latency:g} s a call",
        value=rate,
        unit="calls/s",
        baseline=f"calls in flight / latency ({load.num_at_once} / {load.latency:g} s), the most that is possible",
        baseline_value=load.ideal,
        ratio=rate / load.ideal,
        goal=f"ratio >= {GOAL_RATIO}",
        met=rate / load.ideal >= GOAL_RATIO,
    )
    return [
        speed,
        _row(f"{program}, peak memory", _median(measured, "megabytes"), "MB", most=GOAL_MEGABYTES),
        _row(
            f"{program}, {processor_case}",
            _median(measured, "milliseconds_per_call"),
            "ms/call",
            most=GOAL_MILLISECONDS,
        ),
    ]


def _resume_rows(resumes: Sequence[tuple[float, float, float]], load: Load) -> list[BenchRow]:
    """How soon a rollout goes on, and what opening its store has of that."""
    started, opened, read = (median(one[place] for one in resumes) for place in range(3))
    case = f"resume over {load.num_finished:,} episodes"
    baseline = f"reading every line of {EPISODES}", read, median(one[2] / one[1] for one in resumes)
    return [
        _row(f"{case}, from the command to the first call", started, "s", most=GOAL_RESUME_SECONDS),
        _row(f"{case}, opening the store", opened, "s", baseline),
    ]


def _prepare(folder: Path, load: Load) -> None:
    """Writes questions, a small corpus, and the two indexes."""
    corpus = (row for _, row in iter_objects(sample.path("corpus"), Rejects()))
    write_jsonl(folder / "corpus.jsonl", islice(corpus, load.num_documents))
    _write_questions(folder / "questions.jsonl", load.num_questions)
    for name, path in (("small", folder / "corpus.jsonl"), ("whole", sample.path("corpus"))):
        _run(folder, "index", "build", "--corpus", str(path), "--out", str(folder / name))


def _write_questions(path: Path, count: int) -> None:
    """Questions of the sample, with a number each, so that there are enough different ones."""
    asked = [row for _, row in iter_objects(sample.path("questions"), Rejects())]
    rows = (
        {"qid": f"q{number}", "question": f"{row['question']} ({number})", "answer": row["answer"]}
        for number, row in ((number, asked[number % len(asked)]) for number in range(count))
    )
    write_jsonl(path, rows)


def _rollout(out: Path, index: Path, load: Load) -> Measured:
    with BenchServer(load.latency, load.num_turns, load.num_at_once) as server:
        arguments = _rollout_arguments(out, index, out.parent / "questions.jsonl", server, load)
        return _measured(server, _run(out.parent, *arguments), load)


def _rollout_arguments(out: Path, index: Path, questions: Path, server: BenchServer, load: Load) -> list[str]:
    return [
        *("synth", "rollout", "--questions", str(questions), "--index", str(index), "--out", str(out)),
        *("--model.name", "waits", "--model.base-url", server.url),
        *("--model.concurrency", str(load.num_at_once), "--episodes-at-once", str(load.num_at_once)),
    ]


def _extract(folder: Path, rollout: str) -> None:
    """Makes the sub-queries that are labelled."""
    arguments = ("--trajectories", str(folder / rollout), "--questions", str(folder / "questions.jsonl"))
    _run(folder, "synth", "extract", *arguments, "--out", str(folder / "subqueries"))


def _label(out: Path, load: Load) -> Measured:
    """Labels, after the same command without a model, which makes the same lists and writes them down."""
    folder = out.parent
    arguments = [
        *("synth", "label", "--subqueries", str(folder / "subqueries"), "--index", str(folder / "small")),
        *("--questions", str(folder / "questions.jsonl"), "--depth", str(load.depth)),
    ]
    lists, _ = _run(folder, *arguments, "--out", f"{out}-lists")
    with BenchServer(load.latency, load.num_turns, load.num_at_once) as server:
        model = ("--model.name", "waits", "--model.base-url", server.url)
        places = ("--model.concurrency", str(load.num_at_once))
        return _measured(server, _run(folder, *arguments, *model, *places, "--out", str(out)), load, lists)


def _measured(server: BenchServer, used: tuple[float, float], load: Load, besides: float = 0.0) -> Measured:
    calls = server.calls()
    seconds, megabytes = used
    return Measured(
        calls_per_second=steady_rate(calls, load.latency),
        milliseconds_per_call=1000 * (seconds - besides) / len(calls),
        milliseconds_in_all=1000 * seconds / len(calls),
        megabytes=megabytes,
    )


def steady_rate(calls: Sequence[Call], latency: float) -> float:
    """Calls answered a second, from two latencies after the first call until the last conversation is begun.

    The first latency is that of the spread first calls; after the last conversation has begun, fewer and fewer are left.
    """
    began = calls[0].arrived + 2 * latency
    ended = max(call.arrived for call in calls if call.begins)
    if ended <= began:
        raise AgentirError("too few calls for a steady state: expected more than two rounds of conversations")
    return sum(call.answered is not None and began < call.answered <= ended for call in calls) / (ended - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopped:
    """A rollout that was killed: finished episodes, some not entered, one torn, and others under way."""

    folder: Path
    out: Path
    size: int
    size_entered: int
    torn: bytes
    load: Load

    def resume(self) -> float:
        """Seconds from starting the command to the first call at the server; then it is killed."""
        self._restore()
        with BenchServer(self.load.latency, self.load.num_turns, self.load.num_at_once) as server:
            began = time.monotonic()
            return _killed_after(1, server, self.folder, self.out, self.load)[0].arrived - began

    def open_store(self) -> float:
        """Seconds for opening the store."""
        self._restore()
        began = time.perf_counter()
        with EpisodeStore(self.out) as store:
            seconds = time.perf_counter() - began
            assert len(store.finished) == self.load.num_finished
        return seconds

    def _restore(self) -> None:
        """Puts the files back as the kill left them."""
        for name, size in ((EPISODES, self.size), (FINISHED, self.size_entered)):
            os.truncate(self.out / name, size)
        with open(self.out / EPISODES, "ab") as file:
            file.write(self.torn)
            file.flush()
            os.fsync(file.fileno())  # a store syncs what it repairs, and is not to wait for all that was written here

    def read_every_line(self) -> float:
        """Seconds for reading all finished episodes."""
        os.truncate(self.out / EPISODES, self.size)
        began = time.perf_counter()
        num_read = sum(1 for _ in read_records(self.out / EPISODES, Trajectory))
        assert num_read == self.load.num_finished
        return time.perf_counter() - began


def _stopped_rollout(folder: Path, load: Load) -> _Stopped:
    """Kills a rollout with its episodes half done, and gives it finished ones."""
    out = folder / "resumed"
    _write_questions(folder / "many.jsonl", load.num_at_once + load.num_finished)
    with BenchServer(SHORT_LATENCY, load.num_turns, 0) as server:
        _killed_after(load.num_at_once * load.num_turns // 2, server, folder, out, load)
    template = next(iter(read_records(folder / "rollout0" / "trajectories.jsonl", Trajectory)))
    template = replace(template, turns=(*template.turns[: RESUME_TURNS - 1], template.turns[-1]))
    with EpisodeStore(out) as store:
        for number in range(load.num_at_once, load.num_at_once + load.num_finished):
            if (qid := f"q{number}") not in store.finished and len(store.finished) < load.num_finished:
                store.finish(replace(template, qid=qid))
    entered = (out / FINISHED).read_bytes().splitlines(keepends=True)
    line = dumps(replace(template, qid="q0")).encode()
    return _Stopped(
        folder=folder,
        out=out,
        size=(out / EPISODES).stat().st_size,
        size_entered=sum(map(len, entered[:-NUM_UNENTERED])),
        torn=line[: len(line) // 2],
        load=load,
    )


def _killed_after(num_calls: int, server: BenchServer, folder: Path, out: Path, load: Load) -> list[Call]:
    """Starts a rollout, kills it when so many calls have come, and returns them."""
    arguments = _rollout_arguments(out, folder / "small", folder / "many.jsonl", server, load)
    with open(folder / "errors.txt", "w+") as errors:
        process = subprocess.Popen(_command(arguments), stdout=errors, stderr=errors)
        try:
            while len(calls := server.calls()) < num_calls:
                if process.poll() is not None:
                    raise _ended(arguments, folder / "errors.txt")
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
    return calls


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "agentir", *arguments]


def _run(folder: Path, *arguments: str) -> tuple[float, float]:
    """Runs a program of agentir to its end; returns the seconds of processor time and the megabytes that it took."""
    with open(folder / "errors.txt", "w+") as errors:
        process = subprocess.Popen(_command(arguments), stdout=errors, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise _ended(arguments, folder / "errors.txt")
    unit = 1 if sys.platform == "darwin" else 1024
    return used.ru_utime + used.ru_stime, used.ru_maxrss * unit / 1e6


def _ended(arguments: Sequence[str], errors: Path) -> AgentirError:
    return AgentirError(f"agentir {' '.join(arguments)} ended early:\n{errors.read_text(errors='replace')[-2000:]}")
