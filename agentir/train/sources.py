"""Where training rows are: files, data sets on this machine, and data sets of the Hugging Face hub.

Files of JSON, alone or in a data set, are read here line by line, so that faults name file and line and an id may be a
number in one row and a text in the next. Parquet, Arrow and what `datasets` saved are read through that package, row by row
without a copy; of a data set of the hub the files of one split are downloaded into its cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentir.corpus.json_array import is_array, iter_items
from agentir.errors import AgentirError, InputError, MissingExtraError
from agentir.jsonl import Rejects, check_regular, iter_objects

Kind = Literal["json", "parquet", "arrow"]
TRAIN, DEV = "train.jsonl", "dev.jsonl"
"""Files of a folder that `agentir synth build` wrote."""
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_FILE_NAME = re.compile(r".*\.(jsonl?|parquet|arrow|gz)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder (then `path` is set), or the id of a data set of the hub; with its configuration and split."""

    name: str
    path: Path | None
    config: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A row as it was found.

    Attributes:
        file: the file or data set.
        number: its line, or its place in an array or data set, from 1.
        unit: what is numbered; empty for lines.
        rowid: what names the row where it has no id of its own: name of the file or data set, and the number.
        value: its fields; of a table only those that are not null.
    """

    file: str
    number: int
    unit: Literal["", "item", "row"]
    rowid: str
    value: dict[str, Any]


def training_sources(examples: str | Path, dev: str | Path | None = None) -> tuple[str, str | None]:
    """The sources of training and development rows.

    A folder of `agentir synth build` stands for its train.jsonl and, unless `dev` is given or it is empty, its dev.jsonl;
    anything else for itself.
    """
    folder = Path(examples)
    given = None if dev is None else str(dev)
    if not (folder / TRAIN).is_file():
        return str(examples), given
    beside = folder / DEV
    has_dev = beside.is_file() and beside.stat().st_size > 0
    return str(folder / TRAIN), given or (str(beside) if has_dev else None)


def parse_source(given: str | Path) -> Source:
    """Reads `path`, or `path` or `org/name` followed by `:config` and `@split`, each where it is needed.

    Raises:
        InputError: that is neither the path of anything that there is, nor the id of a data set.
    """
    text = str(given)
    if Path(text).exists():
        return Source(name=text, path=Path(text))
    name, split = _parted(text, "@")
    name, config = _parted(name, ":")
    if name and Path(name).exists():
        return Source(name=name, path=Path(name), config=config, split=split)
    if not _HUB_ID.fullmatch(name) or _FILE_NAME.fullmatch(name):
        raise InputError(
            f"{text}: no such file or folder; expected one, or a data set of the Hugging Face hub as "
            "org/name, org/name:config or org/name:config@split"
        )
    return Source(name=name, path=None, config=config, split=split)


def _parted(text: str, mark: str) -> tuple[str, str]:
    before, found, after = text.rpartition(mark)
    return (before, after) if found else (text, "")


def iter_rows(given: str | Path, rejects: Rejects) -> Iterator[SourceRow]:
    """Yields the rows of a source one by one.

    Args:
        given: see `parse_source`. A file holds JSON lines or one JSON array (both also `.gz`), or is a `.parquet` or
            `.arrow` file; a folder was saved by `datasets`, or holds files of one of these kinds, as `load_dataset` takes
            them. Of several splits "train" is read where none is named.
        rejects: takes what is no JSON object.

    Raises:
        InputError: there is no such source, or it cannot be read.
        MissingExtraError: it takes the package `datasets`, which is not installed.
    """
    source = parse_source(given)
    if source.path is not None:
        check_regular(source.path)
    if source.path is not None and source.path.is_file():
        if source.config or source.split:
            raise InputError(
                f"{given}: {source.path} is a file, which has no configurations and splits; name only the file"
            )
        if source.path.suffix not in (".parquet", ".arrow"):
            yield from _json_rows([source.path], rejects)
            return
    try:
        yield from _data_set_rows(source, rejects)
    except AgentirError:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "datasets", "train") from None
    except Exception as error:  # what `datasets` and all it calls raise has no type in common
        where = "cannot be read as a data set" if source.path else "no such folder here, and not read from the hub"
        raise InputError(f"{given}: {where}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")


def _json_rows(files: Sequence[Path], rejects: Rejects) -> Iterator[SourceRow]:
    folder = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        unit: Literal["", "item"] = "item" if is_array(file) else ""
        for number, value in iter_items(file, rejects) if unit else iter_objects(file, rejects):
            rowid = f"{file.relative_to(folder)}:{number}"
            yield SourceRow(file=str(file), number=number, unit=unit, rowid=rowid, value=value)


def _data_set_rows(source: Source, rejects: Rejects) -> Iterator[SourceRow]:
    import datasets  # type: ignore[import-untyped]

    path = source.path
    if path is not None and path.is_file():
        kind: Kind = "parquet" if path.suffix == ".parquet" else "arrow"
        yield from _table_rows(
            str(path), datasets.load_dataset(kind, data_files=[str(path)], split="train", streaming=True)
        )
    elif path is not None and any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        saved = datasets.load_from_disk(str(path))
        if isinstance(saved, datasets.DatasetDict):
            split = _chosen(source, list(saved))
            yield from _table_rows(f"{source.name}@{split}", saved[split])
        elif source.split:
            raise InputError(f"{source.name}: expected no split (it was saved without any), found {source.split!r}")
        else:
            yield from _table_rows(source.name, saved)
    else:
        yield from _rows_of_files(source, rejects)


def _rows_of_files(source: Source, rejects: Rejects) -> Iterator[SourceRow]:
    """The rows of a folder, or of a data set of the hub, that consists of files."""
    import datasets

    builder = datasets.load_dataset_builder(source.name, source.config or None)
    data_files = dict(builder.config.data_files or {})
    split = _chosen(source, [str(name) for name in data_files])
    kind = _kind(source, builder)
    found = {str(name): list(files) for name, files in data_files.items()}[split]
    files = [str(file) for file in datasets.DownloadManager().download(found)]
    if kind == "json":
        yield from _json_rows([Path(file) for file in files], rejects)
        return
    table = datasets.load_dataset(kind, data_files=files, split="train", streaming=True)
    yield from _table_rows(f"{source.name}@{split}", table)


def _kind(source: Source, builder: Any) -> Kind:
    from datasets.packaged_modules.arrow.arrow import Arrow  # type: ignore[import-untyped]
    from datasets.packaged_modules.json.json import Json  # type: ignore[import-untyped]
    from datasets.packaged_modules.parquet.parquet import Parquet  # type: ignore[import-untyped]

    kinds: dict[type, Kind] = {Json: "json", Parquet: "parquet", Arrow: "arrow"}
    for builder_type, kind in kinds.items():
        if isinstance(builder, builder_type):
            return kind
    raise InputError(
        f"{source.name}: expected files of JSON, Parquet or Arrow, found {type(builder).__bases__[0].__name__}"
    )


def _chosen(source: Source, splits: Sequence[str]) -> str:
    """The split that is named, else the only one, else "train"."""
    wanted = source.split or (splits[0] if len(splits) == 1 else "train")
    if wanted not in splits:
        raise InputError(f"{source.name}: expected one of its splits after @ ({', '.join(splits)}), found {wanted!r}")
    return wanted


def _table_rows(name: str, table: Iterable[dict[str, Any]]) -> Iterator[SourceRow]:
    for number, row in enumerate(table, start=1):
        # A table has the columns of all its rows, so that null is what a missing field of a JSON line is.
        value = {key: item for key, item in row.items() if item is not None}
        yield SourceRow(file=name, number=number, unit="row", rowid=f"{Path(name).name}:{number}", value=value)
