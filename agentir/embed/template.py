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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentir.artifacts import sha256_json, write_text_atomically
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

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
}
"""What an encoder may be given of a search, by name; the query always comes last."""
Input = Literal["query", "reasoning+query", "question+query"]
Newline = Literal["literal", "real"]
_SLOT = re.compile(r"\{(reasoning|question|query)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTemplate:
    """How queries and documents are rendered.

    Attributes:
        body: text with the slots `{query}` (once, at the very end) and at most one of `{reasoning}` and `{question}`.
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
        slots = _SLOT.findall(self.body)
        if slots.count("query") != 1 or not self.body.endswith("{query}") or len(slots) > 2:
            raise EncoderError(
                f"template body: expected at most one of {{reasoning}} and {{question}}, then {{query}} at the end, "
                f"found {self.body!r}"
            )
        if not self.document.endswith("{text}"):
            raise EncoderError(f"template document: expected {{text}} at the end, found {self.document!r}")

    @property
    def context_slot(self) -> Literal["reasoning", "question"] | None:
        """What the template shows beside the query."""
        if "{reasoning}" in self.body:
            return "reasoning"
        return "question" if "{question}" in self.body else None

    @property
    def hash(self) -> str:
        """Identifies the template; equal only if every rendered byte is."""
        return sha256_json(asdict(self))

    def context(self, query: SearchQuery) -> str:
        """The text that goes into the context slot, before any shortening; empty where there is none."""
        if (slot := self.context_slot) is None:
            return ""
        return (query.reasoning if slot == "reasoning" else query.question).strip()

    def around_context(self, query: SearchQuery) -> tuple[str, str]:
        """What stands before and after the context: the instruction with the body's opening, and the query."""
        slot = self.context_slot
        before, _, after = ("", "", self.body) if slot is None else self.body.partition("{" + slot + "}")
        return self.instruction + before, after.removesuffix("{query}") + query.query

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
