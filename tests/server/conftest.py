"""A small index, and one real server process over it for each module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import DOCUMENTS, Server, serving

from agentir.search.builder import build_index


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    corpus = folder / "corpus.jsonl"
    lines = (json.dumps({"title": "", "url": "", **document}, ensure_ascii=False) + "\n" for document in DOCUMENTS)
    corpus.write_text("".join(lines), encoding="utf-8")
    build_index(folder / "index", corpus)
    return folder / "index"


@pytest.fixture(scope="module")
def server(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(index, tmp_path_factory.mktemp("server")) as running:
        yield running
