"""Runs (what a system ranked) and qrels (what is relevant), in memory and as TREC files.

The order of a run is trec_eval's, whatever the rank column says: by score descending as 32 bit floats, equal scores by
docid descending. Files are read strictly: columns are split at any white space; a byte order mark, carriage returns and
blank lines are no fault; anything else that does not fit is refused with file, line and field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentir.artifacts import write_text_atomically
from agentir.errors import InputError
from agentir.jsonl import Rejects, iter_lines
from agentir.records import Hit

Run = Mapping[str, Sequence[Hit]]
"""qid -> hits."""
Qrels = Mapping[str, Mapping[str, int]]
"""qid -> docid -> grade; a grade above 0 is relevant."""

RUN_COLUMNS = ("qid", "Q0", "docid", "rank", "score", "tag")
QRELS_COLUMNS = ("qid", "iteration", "docid", "grade")
MAX_NAMED = 5
"""How many ids a warning names before it only counts."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_CHUNK = re.compile(r"#\d+\Z", re.ASCII)
_UNSAFE = re.compile(r"[\s\x00]|\A\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run as read from a file, each list best first.

    `tied` names the queries with equal scores, `rank_disagrees` those whose rank column contradicts the scores.
    """

    run: Run
    tied: tuple[str, ...]
    rank_disagrees: tuple[str, ...]

    def warnings(self) -> list[str]:
        """What a user should know before trusting numbers from this run; empty when there is nothing."""
        texts = []
        if self.tied:
            texts.append(f"equal scores, ordered by docid descending as trec_eval does, in {name_some(self.tied)}")
        if self.rank_disagrees:
            texts.append(
                f"the rank column disagrees with the scores (the scores count) in {name_some(self.rank_disagrees)}"
            )
        return texts


def name_some(ids: Sequence[str]) -> str:
    """The number of queries and the first of their ids."""
    rest = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return f"{len(ids)} {'query' if len(ids) == 1 else 'queries'}: {', '.join(ids[:MAX_NAMED])}{rest}"


def trec_order(hits: Sequence[Hit]) -> list[Hit]:
    """The hits as trec_eval orders them: score descending as a 32 bit float, then docid descending."""
    scores = _float32(hits)
    order = sorted(range(len(hits)), key=lambda i: (scores[i], hits[i].docid), reverse=True)
    return [hits[i] for i in order]


def tied_queries(run: Run) -> tuple[str, ...]:
    """The queries in which two hits have the same score as a 32 bit float."""
    return tuple(qid for qid, hits in run.items() if len(np.unique(_float32(hits))) < len(hits))


def _float32(hits: Sequence[Hit]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.array([hit.score for hit in hits], dtype=np.float32)


def check_run(run: Run) -> None:
    """Refuses what would make measures wrong.

    Raises:
        InputError: a query lists a document twice, or a score is not a finite number.
    """
    for qid, hits in run.items():
        seen: set[str] = set()
        for hit in hits:
            if hit.docid in seen:
                raise InputError(
                    f"run: query {qid!r}: expected each document once, found {hit.docid!r} twice; "
                    "fold chunks to documents, or keep the best hit of each"
                )
            seen.add(hit.docid)
            if not np.isfinite(hit.score):
                raise InputError(
                    f"run: query {qid!r}, document {hit.docid!r}: expected a finite score, found {hit.score}"
                )


def fold_chunks(run: Run) -> dict[str, tuple[Hit, ...]]:
    """Folds hits of chunks (`docid#n`) to their documents by the best score; ids without `#n` are documents already."""
    folded = {}
    for qid, hits in run.items():
        best: dict[str, float] = {}
        for hit in hits:
            docid = _CHUNK.sub("", hit.docid)
            best[docid] = max(hit.score, best.get(docid, hit.score))
        folded[qid] = tuple(trec_order([Hit(docid=docid, score=score) for docid, score in best.items()]))
    return folded


def judged_only(run: Run, qrels: Qrels) -> dict[str, tuple[Hit, ...]]:
    """The run without the hits that have no line in the qrels: measures of it must be named "judged only"."""
    return {qid: tuple(hit for hit in hits if hit.docid in qrels.get(qid, {})) for qid, hits in run.items()}


def read_run(path: str | Path, rejects: Rejects | None = None) -> RunFile:
    """Reads a TREC run (qid, Q0, docid, rank, score, tag).

    Args:
        path: the file.
        rejects: where lines that do not fit go; the caller checks it. Without it they raise.

    Raises:
        InputError: lines do not fit and `rejects` was not given.
    """
    collected = rejects if rejects is not None else Rejects()
    lists: dict[str, list[Hit]] = {}
    ranks: dict[str, dict[str, int | None]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, (qid, _, docid, rank, score, _) in _rows(path, RUN_COLUMNS, collected):
        if not _NUMBER.fullmatch(score) or not np.isfinite(float(score)):
            collected.add(path, number, "score", "a finite decimal number", score)
        elif (first := lines.setdefault((qid, docid), number)) != number:
            collected.add(path, number, "docid", f"each document once a query (query {qid}: see line {first})", docid)
        else:
            lists.setdefault(qid, []).append(Hit(docid=docid, score=float(score)))
            ranks.setdefault(qid, {})[docid] = int(rank) if _INTEGER.fullmatch(rank) else None
    if rejects is None:
        collected.check()
    run = {qid: tuple(trec_order(hits)) for qid, hits in lists.items()}
    disagrees = tuple(qid for qid, hits in run.items() if _rank_disagrees(hits, ranks[qid]))
    return RunFile(run=run, tied=tied_queries(run), rank_disagrees=disagrees)


def _rank_disagrees(hits: Sequence[Hit], ranks: Mapping[str, int | None]) -> bool:
    """Whether a hit has a smaller rank number than one with a higher score; equal scores contradict nothing."""
    numbers = [ranks[hit.docid] for hit in hits]
    worst_above, worst_so_far, last = None, None, None
    for score, number in zip(_float32(hits), numbers, strict=True):
        if number is None:
            return True
        if score != last:
            worst_above, last = worst_so_far, score
        if worst_above is not None and number < worst_above:
            return True
        worst_so_far = number if worst_so_far is None else max(number, worst_so_far)
    return False


def read_qrels(path: str | Path, rejects: Rejects | None = None) -> dict[str, dict[str, int]]:
    """Reads TREC qrels (qid, iteration, docid, grade); arguments and errors as for `read_run`."""
    collected = rejects if rejects is not None else Rejects()
    qrels: dict[str, dict[str, int]] = {}
    lines: dict[tuple[str, str], int] = {}
    for number, (qid, _, docid, grade) in _rows(path, QRELS_COLUMNS, collected):
        if not _INTEGER.fullmatch(grade):
            collected.add(path, number, "grade", "a whole number", grade)
        elif (first := lines.setdefault((qid, docid), number)) != number:
            collected.add(path, number, "docid", f"each document once a query (query {qid}: see line {first})", docid)
        else:
            qrels.setdefault(qid, {})[docid] = int(grade)
    if rejects is None:
        collected.check()
    return qrels


def _rows(path: str | Path, names: Sequence[str], rejects: Rejects) -> Iterator[tuple[int, list[str]]]:
    expected = f"{len(names)} columns ({' '.join(names)})"
    for number, line in iter_lines(path):
        try:
            # Split as trec_eval does: at ASCII white space only, so that an id may hold a no-break space.
            columns = [column.decode("utf-8") for column in line.split()]
        except UnicodeDecodeError:
            rejects.add(path, number, "", "UTF-8 text", f"<{line!r}>")
            continue
        if len(columns) == len(names):
            yield number, columns
        else:
            rejects.add(path, number, "", expected, f"<{len(columns)} columns: {line.decode('utf-8')!r}>")


def write_run(path: str | Path, run: Run, tag: str) -> None:
    """Writes a TREC run in trec_eval's order, with ranks from 1 and scores that strictly decrease as 32 bit floats.

    Equal scores are lowered by the least step that a 32 bit float knows, so that every reader sees this one order.

    Raises:
        InputError: an id or the tag is empty or holds white space, which the format cannot carry; or see `check_run`.
    """
    check_run(run)
    _check_token("tag", tag)
    lines = []
    for qid, hits in run.items():
        _check_token("qid", qid)
        for rank, (hit, score) in enumerate(_decreasing(qid, trec_order(hits)), start=1):
            _check_token("docid", hit.docid)
            lines.append(f"{qid} Q0 {hit.docid} {rank} {score} {tag}\n")
    write_text_atomically(path, "".join(lines))


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Writes TREC qrels.

    Raises:
        InputError: an id is empty or holds white space.
    """
    lines = []
    for qid, grades in qrels.items():
        _check_token("qid", qid)
        for docid, grade in grades.items():
            _check_token("docid", docid)
            lines.append(f"{qid} 0 {docid} {grade}\n")
    write_text_atomically(path, "".join(lines))


def fits_trec(value: str) -> bool:
    """Whether an id can stand in a TREC file: it is not empty and holds no white space."""
    return _UNSAFE.search(value) is None


def _check_token(name: str, value: str) -> None:
    if not fits_trec(value):
        raise InputError(
            f"{name} {value!r}: TREC files separate columns by white space, so an id must be non-empty and hold none; "
            "rename it in the corpus or the questions"
        )


def _decreasing(qid: str, hits: Sequence[Hit]) -> Iterator[tuple[Hit, str]]:
    previous = np.float32(np.inf)
    for hit, score in zip(hits, _float32(hits), strict=True):
        text = repr(float(hit.score))
        if previous <= score < np.inf:
            score = np.nextafter(previous, np.float32(-np.inf))
            text = str(score)
        if not np.isfinite(score):
            raise InputError(
                f"run: query {qid!r}, document {hit.docid!r}: score {hit.score} does not fit a 32 bit float"
            )
        previous = score
        yield hit, text
