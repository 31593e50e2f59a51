"""Searches an index from the command line.

agentir index search --index runs/index --query "Oslo opera architect" --reasoning "Bergen is ruled out."
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from agentir.config import Field, Section
from agentir.search.retriever import Retriever

SNIPPET_WORDS = 30


class Config(Section):
    """What to search for, and where."""

    index: Path
    """An index folder."""
    query: str
    """What to search for."""
    reasoning: str = ""
    """What led to the query; dense search reads it if the encoder was trained to."""
    k: int = Field(default=10, ge=1)
    """How many documents to show."""
    searcher: Literal["auto", "dense", "bm25"] = "auto"
    """How to search: by vectors, or by the words of the query (BM25); auto is dense where the index holds vectors."""
    encoder: str | None = None
    """Query encoder, a model folder or name; default is the model that built the index."""


def main(config: Config) -> None:
    """Searches and prints rank, score, docid and title of each document, and how it begins."""
    retriever = Retriever.open(config.index, config.encoder, searcher=config.searcher, snippet_words=SNIPPET_WORDS)
    response = retriever.search(config.query, config.reasoning, config.k)
    if config.reasoning and not response.reasoning_used:
        reason = "neither BM25 nor an encoder without a template for reasoning reads it"
        print(f"warning: reasoning is ignored: {reason}", file=sys.stderr)
    for rank, result in enumerate(response.results, start=1):
        print(f"{rank:>3}  {result.score:.4f}  {printable(result.docid)}  {printable(result.title)}")
        print(f"     {printable(result.snippet)}")
    print(f"{len(response.results)} documents, index version {response.index_version}")


def printable(text: str) -> str:
    """The text on one line, without characters that steer a terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
