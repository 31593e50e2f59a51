"""The query template: the one place that turns a query and its reasoning into the text an encoder reads.

Training, indexing and serving all render through it. It is stored inside the checkpoint (`agentir_template.json`) and
its hash in every manifest; how documents are rendered is part of the vector space that an index demands of an encoder.

The published format of AgentIR (texttron/AgentIR, `searcher/prompts.py` and `training/train.sh`) is

    Instruct: Given a user's reasoning ...{separator}Query:Reasoning: {reasoning}\\n\\nQuery: {query}

where a missing reasoning is the word `Empty`. Its separator is a trap: the training and evaluation scripts pass it in
double-quoted shell strings, so the released model was trained with a backslash and an `n`, while the model card shows a
line feed. Both are here, as `newline = "literal"` and `"real"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from agentir.artifacts import sha256_json, write_text_atomically
from agentir.embed.encoder import ContextSlot
from agentir.errors import EncoderError
from agentir.records import Document, PastSearch, SearchQuery

TEMPLATE_FILE = "agentir_template.json"
EMPTY = "Empty"
"""What AgentIR writes where there is no reasoning."""
AGENTIR_TASK = (
    "Given a user's reasoning followed by a web search query, retrieve relevant passages that answer the query while "
    "incorporating the user's reasoning"
)
BODIES: dict[str, str] = {
    "query": "{query}",
    "reasoning+query": "Reasoning: {reasoning}\n\nQuery: {query}",
    "question+query": "Question: {question}\n\nQuery: {query}",
    "reasoning": "Reasoning: {reasoning}",
    "question": "{question}",
    "prior-queries+query": "Previous queries:\n{prior_queries}\n\nQuery: {query}",
    "prior-reasonings+query": "Previous searches:\n{prior_reasonings}\n\nQuery: {query}",
    "history+query": "{history}\n\nQuery: {query}",
}
"""What an encoder may be given of a search, by name; the query, where it is shown, comes last. `reasoning+query` is
AgentIR's, the others are for ablations."""
Input = Literal[
    "query",
    "reasoning+query",
    "question+query",
    "reasoning",
    "question",
    "prior-queries+query",
    "prior-reasonings+query",
    "history+query",
]
Newline = Literal["literal", "real"]
CONTEXT_SLOTS: tuple[ContextSlot, ...] = get_args(ContextSlot)
ALONE: tuple[ContextSlot, ...] = ("reasoning", "question")
"""What an encoder may be given without the query."""
_SLOT = re.compile(r"\{(query|" + "|".join(CONTEXT_SLOTS) + r")\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTemplate:
    """How queries and documents are rendered.

    A context slot is filled with one text, which a token limit shortens from its beginning:

    - `{reasoning}`, `{question}`: those of the search.
    - `{prior_queries}`: the earlier queries of the episode, oldest first, one a line.
    - `{prior_reasonings}`: its earlier searches, oldest first, each with its reasoning.
    - `{history}`: the same, then the question, then the reasoning of the search.

    Attributes:
        body: text with at most one context slot, then the slot `{query}` at the very end; or with `{reasoning}` or
            `{question}` at the very end, and no query.
        instruction: what stands before the body, byte for byte; empty for models that know no instruction.
        empty: what fills a context slot that has no text.
        document: text with the slots `{title}` and `{text}`; a document without a title is its bare text.
        document_instruction: what stands before every document; empty but for models that were trained with one.
    """

    body: str = BODIES["reasoning+query"]
    instruction: str = ""
    empty: str = EMPTY
    document: str = "{title} {text}"
    document_instruction: str = ""

    def __post_init__(self) -> None:
        _check_body(self.body)
        if not self.document.endswith("{text}"):
            raise EncoderError(f"template document: expected {{text}} at the end, found {self.document!r}")

    @property
    def context_slot(self) -> ContextSlot | None:
        """What the template shows beside the query."""
        return next((slot for slot in CONTEXT_SLOTS if "{" + slot + "}" in self.body), None)

    @property
    def shows_query(self) -> bool:
        """Whether the query itself is shown; not so in ablations that show the reasoning or the question alone."""
        return self.body.endswith("{query}")

    @property
    def hash(self) -> str:
        """Identifies the template; equal only if every rendered byte is."""
        return sha256_json(asdict(self))

    def context(self, query: SearchQuery) -> str:
        """The text that goes into the context slot, before any shortening; empty where there is none.

        Raises:
            EncoderError: the question is missing, and the template shows nothing else: all such searches would be one.
        """
        if (slot := self.context_slot) is None:
            return ""
        text = _context(slot, query).strip()
        if not text and slot == "question" and not self.shows_query:
            raise EncoderError(
                f"question: expected one, since the encoder reads nothing else, found none beside the query "
                f"{query.query[:80]!r}; give data with questions, or an encoder that reads the query"
            )
        return text

    def around_context(self, query: SearchQuery) -> tuple[str, str]:
        """What stands before and after the context: the instruction with the body's opening, and the query."""
        slot = self.context_slot
        before, _, after = ("", "", self.body) if slot is None else self.body.partition("{" + slot + "}")
        return self.instruction + before, after.removesuffix("{query}") + (query.query if self.shows_query else "")

    def render(self, query: SearchQuery) -> str:
        """The whole text that an encoder without a token limit would read."""
        before, after = self.around_context(query)
        return before + (self.context(query) or (self.empty if self.context_slot else "")) + after

    def render_document(self, document: Document) -> str:
        """The text of a document; the query's instruction is never put before it."""
        title = self.document.removesuffix("{text}").replace("{title}", document.title) if document.title else ""
        return self.document_instruction + title + document.text

    def save(self, folder: str | Path) -> None:
        """Stores the template inside a checkpoint."""
        path = Path(folder) / TEMPLATE_FILE
        write_text_atomically(
            path, json.dumps({**asdict(self), "hash": self.hash}, indent=2, ensure_ascii=False) + "\n"
        )

    @classmethod
    def load(cls, folder: str | Path) -> QueryTemplate | None:
        """The template stored inside a checkpoint, None where there is none.

        Raises:
            EncoderError: the file is not a template, or was edited by hand (its hash does not fit).
        """
        path = Path(folder) / TEMPLATE_FILE
        if not path.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            stored = values.pop("hash")
            template = cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EncoderError(f"{path}: not a query template: {error!r}") from None
        if template.hash != stored:
            raise EncoderError(
                f"{path}: expected hash {stored}, found {template.hash}; the model was trained with another text"
            )
        return template


def _check_body(body: str) -> None:
    slots = _SLOT.findall(body)
    contexts = [slot for slot in slots if slot != "query"]
    expected = ""
    if len(contexts) > 1:
        expected = f"at most one of {', '.join('{' + slot + '}' for slot in CONTEXT_SLOTS)}"
    elif "query" in slots and not (slots.count("query") == 1 and body.endswith("{query}")):
        expected = "{query} once, at the end"
    elif "query" not in slots and not any(body.endswith("{" + slot + "}") for slot in ALONE):
        expected = "{query} at the end, or {reasoning} or {question} at the end and no query"
    if expected:
        raise EncoderError(f"template body: expected {expected}, found {body!r}")


def _context(slot: ContextSlot, query: SearchQuery) -> str:
    match slot:
        case "reasoning":
            return query.reasoning
        case "question":
            return query.question
        case "prior_queries":
            return "\n".join(past.query.strip() for past in query.history)
        case "prior_reasonings":
            return "\n\n".join(_searches(query.history))
        case "history":
            now = (("Question", query.question.strip()), ("Reasoning", query.reasoning.strip()))
            return "\n\n".join((*_searches(query.history), *(f"{name}: {text}" for name, text in now if text)))


def _searches(history: Iterable[PastSearch]) -> list[str]:
    """Each reasoning once, with the queries it led to (several, where they were sent in parallel)."""
    texts = []
    for reasoning, searches in groupby(history, key=lambda past: past.reasoning.strip()):
        lines = [f"Reasoning: {reasoning}"] if reasoning else []
        texts.append("\n".join((*lines, *(f"Query: {past.query.strip()}" for past in searches))))
    return texts


def instruction(task: str = AGENTIR_TASK, newline: Newline = "literal") -> str:
    """The instruction of Qwen3-Embedding and AgentIR: `Instruct: {task}`, a separator, `Query:`.

    Args:
        task: one sentence that says what to retrieve.
        newline: "literal" (a backslash and an n, as the released AgentIR-4B was trained) or "real" (a line feed).
    """
    return f"Instruct: {task}" + ("\\n" if newline == "literal" else "\n") + "Query:"


def agentir_template(newline: Newline = "literal") -> QueryTemplate:
    """The template of the released AgentIR-4B: its instruction, reasoning and query; documents are their bare text."""
    return QueryTemplate(instruction=instruction(newline=newline), document="{text}")


def template_for(kind: Input, *, task: str = "", newline: Newline = "literal") -> QueryTemplate:
    """A template by what it shows; without a task there is no instruction (small encoders were trained without one)."""
    return QueryTemplate(body=BODIES[kind], instruction=instruction(task, newline) if task else "")


def render_reasoning_query(reasoning: str, query: str) -> str:
    """The `query` of a Tevatron/AgentIR training row: reasoning and query, without the instruction."""
    return QueryTemplate().render(SearchQuery(query=query, reasoning=reasoning))
