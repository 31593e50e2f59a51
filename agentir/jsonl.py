"""JSON lines, read strictly and written whole; `agentir.appender` appends.

Reading splits at line feeds only (never at U+2028), drops a byte order mark and carriage returns, skips blank lines,
opens `.gz` files, replaces lone surrogates by U+FFFD, and refuses numbers that are not finite. Every line that does not fit
is kept with its file, line, field, what was expected and what was found; see `Rejects`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agentir.errors import InputError

R = TypeVar("R")
MAX_SHOWN = 20
"""How many faults an error text lists before it only counts."""
MAX_DEPTH = 100
"""Deeper nesting is refused: the validating parser cannot read it back (it stops at 200)."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAYBE_TOO_LARGE = re.compile(rb"\d(?:[eE]\+?\d{3}|\d{308})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A line that does not fit; `line` counts from 1."""

    file: str
    line: int
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " + (f"{self.field}: " if self.field else "")
        return f"{where}expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class Rejects:
    """Collects the lines that do not fit, so that all are reported at once and none is lost.

    With `set_aside` false (the default), `check` raises if there were any; otherwise they are counted, and
    `agentir.artifacts.Artifact.finish` writes them to `rejected.jsonl`.
    """

    set_aside: bool = False
    items: list[Reject] = field(default_factory=list)

    def add(self, file: str | Path, line: int, name: str, expected: str, found: object) -> None:
        """Notes one fault; `found` is shown as a short Python literal."""
        self.items.append(Reject(file=str(file), line=line, field=name, expected=expected, found=_shown(found)))

    def check(self) -> None:
        """Raises:
        InputError: lines were refused and are not to be set aside; the text lists them.
        """
        if self.items and not self.set_aside:
            shown = [str(item) for item in self.items[:MAX_SHOWN]]
            if (rest := len(self.items) - len(shown)) > 0:
                shown.append(f"... and {rest} more")
            shown.append('nothing was written; mend the lines, or set on_bad_line = "set_aside"')
            raise InputError("\n".join(shown))

    def counts(self) -> dict[str, int]:
        """Number of refused lines a file."""
        return dict(Counter(file for file, _ in sorted({(item.file, item.line) for item in self.items})))


class Misfit(InputError):
    """A value inside a line that does not fit; `args` are field, expected and found, as `Rejects.add` takes them."""

    def __init__(self, name: str, expected: str, found: object) -> None:
        super().__init__(name, expected, found)

    def __str__(self) -> str:
        name, expected, found = self.args
        return f"{name}: expected {expected}, found {_shown(found)}"


def _shown(found: object) -> str:
    """A value as a short Python literal; a text in angle brackets stands for what is no value, and is left so."""
    shown = found if isinstance(found, str) and found.startswith("<") else repr(found)
    return shown if len(shown) <= 120 else shown[:117] + "..."


def clean_text(text: str) -> str:
    """The text with lone surrogates (half of a UTF-16 pair, which no UTF-8 file can hold) replaced by U+FFFD."""
    return _SURROGATE.sub("�", text)


def as_id(value: object) -> str | None:
    """The id that a JSON value stands for: a text that is not blank, or an integer (7 and "007" stay different).

    None for anything else.
    """
    if isinstance(value, str):
        return value if value.strip() else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def check_regular(path: Path) -> None:
    """Refuses pipes and devices: an input is read more than once, and must end.

    Raises:
        InputError: something is there that is neither a file nor a folder.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: expected a file, found a pipe or device; write its content to a file first")


def iter_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, bytes without line end) of every line that is not blank.

    Raises:
        InputError: the file is missing, or its gzip stream is broken.
    """
    path = Path(path)
    try:
        check_regular(path)
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            number = 0
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if (line := line.rstrip(b"\r\n")).strip():
                    yield number, line
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: expected a file, found a folder") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: broken gzip stream after line {number}: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def iter_objects(path: str | Path, rejects: Rejects) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of a JSON lines file; lines that hold no JSON object go to `rejects`."""
    return parse_objects(path, iter_lines(path), rejects)


def parse_objects(
    path: str | Path, parts: Iterable[tuple[int, bytes]], rejects: Rejects, unit: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number, object) of the numbered parts of a file; parts that hold no JSON object go to `rejects`.

    Args:
        path: the file.
        parts: JSON texts, numbered from 1.
        rejects: takes the others, with the number for a line.
        unit: what is numbered, named in the rejects; lines need no name.
    """
    for number, part in parts:
        name = f"{unit} {number}" if unit else ""
        try:
            value = loads(part)
        except UnicodeDecodeError as error:
            rejects.add(
                path, number, name, "UTF-8 text", f"<byte 0x{part[error.start]:02x} at column {error.start + 1}>"
            )
            continue
        except (ValueError, RecursionError) as error:
            rejects.add(path, number, name, f"a JSON object ({_reason(error)})", part.decode("utf-8", "replace"))
            continue
        if not isinstance(value, dict):
            rejects.add(path, number, name, "a JSON object", value)
            continue
        yield number, value


def loads(line: bytes) -> Any:
    """A JSON value, read as strictly as a line of a file, lone surrogates replaced.

    Raises:
        ValueError: that is no JSON, no UTF-8, or holds a number that is not finite.
        RecursionError: it is nested too deeply.
    """
    value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    if _SURROGATE_ESCAPE.search(line) or line.count(b"[") + line.count(b"{") > MAX_DEPTH:
        return _clean(value)
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return f"nested deeper than {MAX_DEPTH}" if isinstance(error, RecursionError) else str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def _clean(value: Any, depth: int = 1) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list | dict) and depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _clean(item, depth + 1) for key, item in value.items()}
    return value


_FAULTS = {
    "missing": ("a value", "<nothing>"),
    "unexpected_keyword_argument": ("only known fields", "<an unknown one>"),
}
"""What pydantic's texts of these faults fail to say: type of the fault -> expected, found."""


@cache
def _adapter(record_type: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(record_type)


def read_records(path: str | Path, record_type: type[R], rejects: Rejects | None = None) -> Iterator[R]:
    """Yields the records of a file that agentir wrote.

    Args:
        path: a JSON lines file.
        record_type: a type of `agentir.records`, or any other dataclass.
        rejects: where faults go; without it the first fault raises.

    Raises:
        InputError: a line does not fit and `rejects` was not given.
    """
    adapter = _adapter(record_type)  # type: ignore[arg-type]  # mypy takes no class for hashable
    collected = rejects if rejects is not None else Rejects()
    for number, line in iter_lines(path):
        try:
            record: R = adapter.validate_json(line)
            if _maybe_not_finite(line):  # the validating parser lets NaN through
                loads(line)
        except ValidationError as error:
            add_validation_faults(collected, path, number, error)
        except (ValueError, RecursionError) as error:
            collected.add(path, number, "", f"a JSON object ({_reason(error)})", line.decode("utf-8", "replace"))
        else:
            yield record
            continue
        if rejects is None:
            collected.check()


def _maybe_not_finite(line: bytes) -> bool:
    # Plain searches for the words: as parts of the pattern they make it four times slower.
    return b"NaN" in line or b"Infinity" in line or _MAYBE_TOO_LARGE.search(line) is not None


def add_validation_faults(rejects: Rejects, path: str | Path, line: int, error: ValidationError) -> None:
    """Notes what pydantic found wrong with a line, one fault a field.

    Args:
        rejects: takes the faults.
        path: the file.
        line: its line, from 1.
        error: what validating the line as a record raised.
    """
    for problem in error.errors(include_url=False):
        found = problem["input"]
        if isinstance(found, bytes):  # the whole line, where it is no JSON
            found = found.decode("utf-8", "replace")
        expected, found = _FAULTS.get(problem["type"], (problem["msg"].removeprefix("Input should be "), found))
        if problem["type"] == "json_invalid":
            expected = f"a JSON object ({problem['ctx']['error'].replace('at line 1 column', 'at column')})"
        rejects.add(path, line, ".".join(str(part) for part in problem["loc"]), expected, found)


def dumps(record: Any) -> str:
    """One line of JSON, without its line end; a dataclass is written with its fields in order.

    Lone surrogates become U+FFFD, so that the line can be encoded.
    """
    if is_dataclass(record) and not isinstance(record, type):
        record = {f.name: getattr(record, f.name) for f in fields(record)}
    return clean_text(json.dumps(to_jsonable_python(record), ensure_ascii=False, allow_nan=False))


def write_jsonl(path: str | Path, records: Iterable[Any]) -> int:
    """Writes a whole file, aside first and then moved into place; returns the number of lines."""
    return write_lines(path, (dumps(record).encode("utf-8") + b"\n" for record in records))


def write_lines(path: str | Path, lines: Iterable[bytes]) -> int:
    """Writes a whole file of encoded lines with their ends, aside first and then moved into place; returns their number."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    count = 0
    with open(part, "wb") as file:
        for line in lines:
            file.write(line)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    return count
