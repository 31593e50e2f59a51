"""Training rows from files, from data sets on this machine, and from the Hugging Face hub."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, Features, Sequence, Value
from hub_server import HubServer

from agentir.errors import InputError, MissingExtraError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.train.data import TrainingRow, read_rows
from agentir.train.sources import parse_source, training_sources

ROWS = [
    {
        "query_id": f"w{number}_turn0",
        "query": f"Reasoning: r\n\nQuery: q{number}",
        "positive_passages": [{"docid": "1", "text": "p", "title": "T"}],
        "negative_passages": [{"docid": "2", "text": "n", "title": None}] if number else [],
    }
    for number in range(3)
]
DOCUMENTS = {"1": Document(docid="1", text="p", title="T"), "2": Document(docid="2", text="n")}


def read(source: str | Path) -> tuple[list[TrainingRow], dict[str, Document]]:
    documents: dict[str, Document] = {}
    rejects = Rejects()
    rows = read_rows(source, rejects, documents)
    rejects.check()
    return rows, documents


def write_json(path: Path, rows: list[Any], *, array: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows)
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.write(text)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in every kind of file and folder; where there are splits, "test" holds only the first."""
    folder = tmp_path_factory.mktemp("data")
    table, first = Dataset.from_list(ROWS), Dataset.from_list(ROWS[:1])
    table.save_to_disk(str(folder / "saved"))
    DatasetDict(train=table, test=first).save_to_disk(str(folder / "splits"))
    (folder / "parquet" / "data").mkdir(parents=True)
    table.to_parquet(folder / "parquet" / "data" / "train-00000-of-00001.parquet")
    first.to_parquet(folder / "parquet" / "data" / "test-00000-of-00001.parquet")
    (folder / "arrow").mkdir()
    (arrow,) = (folder / "saved").glob("*.arrow")
    shutil.copyfile(arrow, folder / "arrow" / "train.arrow")
    write_json(folder / "json" / "train.jsonl", ROWS)
    write_json(folder / "json" / "test.jsonl.gz", ROWS[:1])
    write_json(folder / "array.json", ROWS, array=True)
    return folder


@pytest.mark.parametrize(
    ("source", "first_place"),
    [
        ("saved", "saved:1"),
        ("splits", "splits@train:1"),
        ("splits@train", "splits@train:1"),
        ("parquet", "parquet@train:1"),
        ("parquet:default@train", "parquet@train:1"),
        ("parquet/data/train-00000-of-00001.parquet", "parquet/data/train-00000-of-00001.parquet:1"),
        ("arrow", "arrow@train:1"),
        ("arrow/train.arrow", "arrow/train.arrow:1"),
        ("json@train", "json/train.jsonl:1"),
        ("json/train.jsonl", "json/train.jsonl:1"),
        ("array.json", "array.json:1"),
    ],
)
def test_every_kind_of_source_gives_the_same_rows(data: Path, source: str, first_place: str) -> None:
    rows, documents = read(data / source)
    assert [(row.rowid, row.question, row.query.query) for row in rows] == [
        (f"w{number}_turn0", f"w{number}", f"q{number}") for number in range(3)
    ]
    assert [(row.positives, row.negatives) for row in rows] == [(("1",), ()), (("1",), ("2",)), (("1",), ("2",))]
    assert documents == DOCUMENTS
    assert rows[0].place == f"{data}/{first_place}"


@pytest.mark.parametrize("source", ["splits@test", "parquet@test", "json@test"])
def test_split_that_is_named_is_read(data: Path, source: str) -> None:
    assert len(read(data / source)[0]) == 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("splits@dev", "splits: expected one of its splits after @ (train, test), found 'dev'"),
        ("parquet@train[:1]", "expected one of its splits after @ (train, test), found 'train[:1]'"),
        ("saved@train", "saved: expected no split (it was saved without any), found 'train'"),
        (
            "parquet:french",
            "parquet:french: cannot be read as a data set: ValueError: BuilderConfig 'french' not found",
        ),
        ("json/train.jsonl@train", "train.jsonl is a file, which has no configurations and splits"),
        ("no/such/folder", "no/such/folder: no such file or folder; expected one, or a data set"),
        ("rows.jsonl", "rows.jsonl: no such file or folder"),
    ],
)
def test_source_that_is_not_there_is_named(data: Path, source: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        read(data / source)
    assert text in str(error.value)


def test_folders_that_hold_no_rows_and_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: cannot be read as a data set: .* doesn't contain any data files"):
        read(tmp_path / "empty")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("query,positive\nq,p\n")
    with pytest.raises(InputError, match=r"csv: expected files of JSON, Parquet or Arrow, found Csv"):
        read(tmp_path / "csv")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: expected a file, found a pipe"):
        read(tmp_path / "pipe")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is none PAR1")
    with pytest.raises(InputError, match=r"broken\.parquet: cannot be read as a data set: ArrowInvalid"):
        read(tmp_path / "broken.parquet")


def test_row_of_a_table_that_does_not_fit_is_named(tmp_path: Path) -> None:
    Dataset.from_list([{"query": "q", "pos": "p"}, {"query": None, "pos": "r"}]).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError) as error:
        read(tmp_path / "a.parquet")
    for text in ("a.parquet:1: row 1: pos: expected a list of texts", "a.parquet:2: row 2: query: expected a text"):
        assert text in str(error.value)


def test_null_in_a_table_is_a_field_that_is_missing(tmp_path: Path) -> None:
    rows = [
        {"anchor": "q", "positive": "p", "negative_1": "n", "negative_2": "m"},
        {"anchor": "r", "positive": "p", "negative_1": "n"},
    ]
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "rows"))
    found, _ = read(tmp_path / "rows")
    assert [len(row.negatives) for row in found] == [2, 1]
    assert [row.rowid for row in found] == ["rows:1", "rows:2"]


def test_lists_of_objects_that_are_kept_as_columns(tmp_path: Path) -> None:
    passage = {"docid": Value("int64"), "text": Value("string")}
    features = Features({"query": Value("string"), "positive_passages": Sequence(passage)})
    rows = [{"query": "q", "positive_passages": {"docid": [1, 2], "text": ["p", "r"]}}]
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    (row,), documents = read(tmp_path / "rows.parquet")
    assert row.positives == ("1", "2") and documents["2"].text == "r"


def test_json_of_a_folder_may_have_ids_of_both_types_and_names_rows_by_their_file(tmp_path: Path) -> None:
    write_json(tmp_path / "rows" / "train" / "a.jsonl", [{"query": "q", "positive_ids": [12, "013"]}])
    write_json(tmp_path / "rows" / "train" / "b.jsonl", [{"query": "q", "positive_ids": ["x"]}, {"query": " "}])
    rejects = Rejects()
    rows = read_rows(tmp_path / "rows", rejects, {})
    assert [(row.rowid, row.positives) for row in rows] == [("a.jsonl:1", ("12", "013")), ("b.jsonl:1", ("x",))]
    assert {(Path(item.file).name, item.line, item.field) for item in rejects.items} == {
        ("b.jsonl", 2, "query"),
        ("b.jsonl", 2, "positive"),
    }


def test_folder_of_examples_stands_for_its_two_sides(tmp_path: Path) -> None:
    train, dev = write_json(tmp_path / "train.jsonl", ROWS), tmp_path / "dev.jsonl"
    dev.touch()
    assert training_sources(tmp_path) == (str(train), None)
    write_json(dev, ROWS)
    assert training_sources(tmp_path) == (str(train), str(dev))
    assert training_sources(tmp_path, "other.jsonl") == (str(train), "other.jsonl")
    assert training_sources("org/name@train", Path("org/name@dev")) == ("org/name@train", "org/name@dev")


@pytest.mark.parametrize(
    ("given", "name", "config", "split"),
    [
        ("org/name", "org/name", "", ""),
        ("org/name:en@dev", "org/name", "en", "dev"),
        ("my-org/some_data.v2@dev", "my-org/some_data.v2", "", "dev"),
    ],
)
def test_ids_of_the_hub(given: str, name: str, config: str, split: str) -> None:
    source = parse_source(given)
    assert (source.name, source.path, source.config, source.split) == (name, None, config, split)


def test_path_with_the_marks_of_a_split_in_it_is_a_path(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a:b@c.jsonl", ROWS)
    assert parse_source(path).path == path and len(read(path)[0]) == 3


SCRIPT = """
import json, sys
from agentir.errors import InputError, MissingExtraError
from agentir.jsonl import Rejects
from agentir.train.data import read_rows

for source in sys.argv[1:]:
    try:
        print(json.dumps([str(row) for row in read_rows(source, Rejects(), {})]))
    except InputError as error:
        print(json.dumps(str(error)))
"""


def read_elsewhere(sources: list[str], home: Path, **environment: str) -> list[Any]:
    """What the rows of each source are called, or the error; in a process of its own, since the address of the hub is
    fixed when the package is imported."""
    settings = {**os.environ, "HF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    command = [sys.executable, "-c", SCRIPT, *sources]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_data_set_of_the_hub_is_downloaded_and_read(data: Path, tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    shutil.copytree(data / "parquet", tmp_path / "org" / "table")
    shutil.copytree(data / "json", tmp_path / "org" / "lines")
    server = HubServer(tmp_path)
    try:
        sources = ["org/table@test", "org/lines", "org/nothing"]
        table, lines, missing = read_elsewhere(sources, tmp_path / "home", HF_ENDPOINT=server.url)
    finally:
        server.close()
    assert table == ["row w0_turn0, org/table@test:1"]
    assert [line.split(",")[0] for line in lines] == [f"row w{number}_turn0" for number in range(3)]
    assert server.downloads == ["test-00000-of-00001.parquet", "train.jsonl"]
    assert missing.startswith("org/nothing: no such folder here, and not read from the hub: DatasetNotFoundError:")


def test_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    (error,) = read_elsewhere(["org/name:en@train"], tmp_path / "home", HF_HUB_OFFLINE="1")
    assert error.startswith("org/name:en@train: no such folder here, and not read from the hub: ConnectionError:")


def test_package_that_is_missing_is_named_but_json_needs_none(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets is not installed; .*agentir\[train\]"):
        read(data / "saved")
    assert len(read(data / "array.json")[0]) == 3
