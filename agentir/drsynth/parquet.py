"""Training examples as a folder that `datasets.load_dataset` reads: a Parquet file for each side of the split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from agentir.drsynth.tevatron import tevatron_row
from agentir.errors import MissingExtraError
from agentir.records import Document, TrainingExample

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise MissingExtraError("pyarrow", "train") from None

ROWS_A_GROUP = 500
"""Rows that are held in memory, and stand together in the file: with eight passages each, some megabytes."""
_PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("text", pa.string())]))
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("query_id", "query", "reasoning", "sub_query", "question")),
        ("positive_passages", _PASSAGES),
        ("negative_passages", _PASSAGES),
    ]
)


def write_parquet(path: Path, examples: Iterable[TrainingExample], documents: Mapping[str, Document]) -> None:
    """Writes one side: rows as Tevatron has them, and reasoning, sub-query and question also by themselves.

    Args:
        path: the file.
        examples: those of the side; those without negatives, too.
        documents: the texts of their documents, by docid.
    """
    rows = (_row(example, documents) for example in examples)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist(group, schema=SCHEMA))


def front_matter(files: Mapping[str, str]) -> str:
    """The head of the folder's README.md, which tells `datasets` where the splits are.

    Args:
        files: split -> file name.
    """
    splits = "".join(f"      - split: {split}\n        path: {name}\n" for split, name in files.items())
    return f"---\nlicense: other\nconfigs:\n  - config_name: default\n    data_files:\n{splits}---\n\n"


def _row(example: TrainingExample, documents: Mapping[str, Document]) -> dict[str, Any]:
    row = tevatron_row(example, documents)
    subquery = example.subquery
    passages = {
        name: [{"docid": passage.docid, "text": passage.text} for passage in given]
        for name, given in (
            ("positive_passages", row.positive_passages),
            ("negative_passages", row.negative_passages),
        )
    }
    return {
        "query_id": row.query_id,
        "query": row.query,
        "reasoning": subquery.reasoning,
        "sub_query": subquery.query,
        "question": subquery.question,
        **passages,
    }


def _groups(rows: Iterator[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    while group := list(islice(rows, ROWS_A_GROUP)):
        yield group
