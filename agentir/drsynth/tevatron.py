"""Training examples in the format of Tevatron and of the released AgentIR data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentir.embed.template import QueryTemplate, render_reasoning_query
from agentir.records import Document, TrainingExample


@dataclass(frozen=True, slots=True, kw_only=True)
class TevatronPassage:
    """A passage; its title, if it has one, begins the text, as in AgentIR's rows."""

    docid: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TevatronRow:
    """A training row; the query holds the reasoning, but not the instruction, which the trainer puts before it."""

    query_id: str
    query: str
    positive_passages: Sequence[TevatronPassage]
    negative_passages: Sequence[TevatronPassage]


def tevatron_row(example: TrainingExample, documents: Mapping[str, Document]) -> TevatronRow:
    """The row of an example, with the texts of its documents."""
    return TevatronRow(
        query_id=example.subquery.subqid,
        query=render_reasoning_query(example.subquery.reasoning, example.subquery.query),
        positive_passages=[_passage(documents[docid]) for docid in example.positive_docids],
        negative_passages=[_passage(documents[docid]) for docid in example.negative_docids],
    )


def _passage(document: Document) -> TevatronPassage:
    return TevatronPassage(docid=document.docid, text=QueryTemplate().render_document(document))
