"""The card of a trained model: what it reads, how to use it, what was measured, and how it was made.

It is the `README.md` of the checkpoint, with the front matter that the Hugging Face Hub and sentence-transformers read, from
what the run knows. Whatever comes from outside is shown as code, so that no text of it becomes markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import jinja2
from huggingface_hub import ModelCardData

from agentir import __version__
from agentir.artifacts import write_text_atomically
from agentir.embed.template import QueryTemplate
from agentir.records import Document, PastSearch, SearchQuery

CARD = "README.md"
TEMPLATE = "card.md.j2"
EXAMPLE = SearchQuery(
    query="capital of the country with the highest lake",
    reasoning="The lake must be Titicaca, so I look for the countries that share it.",
    question="Which language is spoken in the capital of the country with the highest lake?",
    history=(PastSearch(query="highest lake", reasoning="First I need the lake."),),
)
DOCUMENT = Document(docid="d1", title="Lima", text="Lima is the capital of Peru.")
CONTEXTS: dict[str, str] = {
    "reasoning": "the agent's reasoning before the search",
    "question": "the question that the agent works on",
    "prior_queries": "the earlier queries of the episode",
    "prior_reasonings": "the earlier searches of the episode with their reasoning",
    "history": "the earlier searches of the episode, the question, and the reasoning before the search",
}
"""What stands in the context slots of a template."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PROGRAMS = {
    "index": "index build",
    "trajectories": "synth rollout",
    "subqueries": "synth extract",
    "rankings": "synth label",
    "examples": "synth build",
    "model": "train",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on development rows.

    Attributes:
        values: of the trained model, as `agentir.train.evaluator.DevEvaluator` gives them: `nDCG@10`, and under other
            conditions `nDCG@10 without reasoning`.
        base: likewise of the model before training; empty where it was not measured.
        num_rows: development rows.
        num_questions: questions that they come from.
        searched: what was searched, such as "all 1,000 documents of the index".
        chosen_on: whether the same rows chose settings or the step that was kept.
    """

    values: Mapping[str, float]
    num_rows: int
    num_questions: int
    searched: str
    base: Mapping[str, float] = field(default_factory=dict)
    chosen_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What the card tells; nothing else is claimed in it.

    Attributes:
        base: the model that training started from, as the user named it.
        template: how texts are rendered.
        max_query_tokens: limit of a rendered query.
        max_document_tokens: limit of a document.
        dim: length of the vectors.
        passages: whose frozen vectors the queries were tuned against; None where the model encodes documents itself.
        measured: None where there were no development rows, or they were trained on.
        data: what the training rows are like, as lines.
        config: what was configured, without inputs.
        settings: with what this model was trained, after any search.
        inputs: name -> path and fingerprint, see `agentir.artifacts.Artifact.inputs`.
        upstream: how the inputs were made, see `agentir.artifacts.Artifact.upstream`.
        num_seeds: models that were trained alike but for their seed.
        parity: how the saved model compares with the trained one, as lines.
    """

    base: str
    template: QueryTemplate
    max_query_tokens: int
    max_document_tokens: int
    dim: int
    passages: str | None
    measured: Measured | None
    data: Sequence[str]
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, str]]
    upstream: Mapping[str, Mapping[str, Any]]
    num_seeds: int = 1
    parity: Sequence[str] = ()


def write_card(folder: Path, facts: CardFacts) -> None:
    """Writes the card into a model folder, over any card that is there."""
    write_text_atomically(folder / CARD, render_card(facts))


def render_card(facts: CardFacts) -> str:
    """The card as text; equal facts give the same text, wherever the files lie."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": code, "block": block, "snippet": snippet, "python": repr, "json": _json}
    template = facts.template
    query = template.render(EXAMPLE)
    return environment.get_template(TEMPLATE).render(
        front_matter=front_matter(facts),
        version=__version__,
        facts=facts,
        base=_shown_name(facts.base),
        passages=None if facts.passages is None else _shown_name(facts.passages),
        template=template,
        whole_query=template.instruction + template.body,
        context=None if template.context_slot is None else CONTEXTS[template.context_slot],
        reads=reads(template),
        cutting=cutting(template),
        separators=separators(template.instruction),
        query=query,
        rest=query.removeprefix(template.instruction),
        document=template.render_document(DOCUMENT).removeprefix(template.document_instruction),
        rows=measured_rows(facts.measured),
        measures=[] if facts.measured is None else [name for name in facts.measured.values if " " not in name],
        steps=[_step(made) for made in _first_to_last(facts.upstream)],
        inputs=_inputs(facts.inputs),
        missing=not_measured(facts),
    )


def front_matter(facts: CardFacts) -> str:
    """The card's YAML. A licence is not in it: it follows from the base and the data, which only the user knows."""
    is_hub_id = _HUB_ID.fullmatch(facts.base) is not None and not Path(facts.base).exists()
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "dense", "agentir"],
        base_model=facts.base if is_hub_id else None,
    )
    return str(data.to_yaml(line_break="\n"))


def reads(template: QueryTemplate) -> str:
    """What a vector is made of."""
    if template.context_slot is None:
        return "a search query"
    context = CONTEXTS[template.context_slot]
    return f"a search query with {context}" if template.shows_query else context


def cutting(template: QueryTemplate) -> str:
    """What becomes of texts beyond the limits."""
    if template.context_slot is None:
        return (
            "`agentir` refuses longer queries and cuts documents at their end; other software cuts both at their end."
        )
    if not template.shows_query:
        return "`agentir` cuts queries at their beginning and documents at their end; other software cuts both at their end."
    return (
        "`agentir` shortens what is before the query from its oldest end, never the query, and cuts documents at their end. "
        "Other software cuts queries at their end, where the query itself stands: shorten what is before it first."
    )


def separators(instruction: str) -> str:
    """How an instruction separates its lines, in words; empty where it has one line."""
    kinds = [("\\n", "a backslash and the letter n (two characters)"), ("\n", "a line feed (one character)")]
    return " and ".join(words for separator, words in kinds if separator in instruction)


def measured_rows(measured: Measured | None) -> list[tuple[str, list[str]]]:
    """A row for each condition: its name, and of each measure the value before training and after."""
    if measured is None:
        return []
    measures = [name for name in measured.values if " " not in name]
    conditions = dict.fromkeys(name.partition(" ")[2] for name in measured.values)
    rows = []
    for condition in conditions:
        cells = []
        for measure in measures:
            key = f"{measure} {condition}" if condition else measure
            for values in (measured.base, measured.values):
                cells.append(f"{values[key]:.4f}" if key in values else "not measured")
        rows.append((condition or "as trained", cells))
    return rows


def not_measured(facts: CardFacts) -> list[str]:
    """What nobody should take for known, as sentences."""
    measured, slot = facts.measured, facts.template.context_slot
    sentences = []
    if measured is None:
        sentences.append(
            "The quality of this model was not measured: there were no development rows apart from training."
        )
    else:
        sentences.append(
            "It was measured on these development rows only. Other corpora, languages and agents, and whether an agent answers "
            "more questions with it, were not measured."
        )
        if measured.chosen_on:
            sentences.append(
                "The same development rows chose settings or the step that was kept, so the values above may be too high."
            )
        known = {name.partition(" ")[2] for name in measured.values}
        if slot is not None:
            if "without reasoning" not in known:
                sentences.append("Queries alone, without what is shown beside them, were not measured.")
            if "wrong reasoning" not in known:
                sentences.append("Queries beside the context of another question were not measured.")
        if not measured.base:
            sentences.append("The model before training was not measured on these rows.")
    if facts.num_seeds == 1:
        sentences.append("One seed was trained, so how much the values vary between seeds is not known.")
    sentences.append("No test of significance was made for this card.")
    sentences.append("Servers other than those named under Checks, vLLM among them, were not compared.")
    return sentences


def code(value: Any) -> str:
    """A text as inline code, also within a table's cell; nothing of it is read as markup."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(value))
    if text and not re.search(r"[`|]|^ | $", text):
        return f"`{text}`"
    return "<code>" + "".join(char if char.isalnum() else f"&#{ord(char)};" for char in text) + "</code>"


def block(text: str, language: str = "text") -> str:
    """A text as a code block; one with characters that do not show as they are is written as a JSON string."""
    if not text.replace("\n", "").isprintable():
        text = json.dumps(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def snippet(text: str, language: str) -> str:
    """A piece of code, as a code block."""
    return block(text.strip("\n"), language)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown_name(name: str) -> str:
    """A model's name; of a folder its last part, since the rest says more of a machine than of the model."""
    return PurePath(name).name if Path(name).is_absolute() or Path(name).is_dir() else name


def _first_to_last(upstream: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All that was made on the way, each once, after what it was made of."""
    steps: list[Mapping[str, Any]] = []
    for made in upstream.values():
        steps += [step for step in (*_first_to_last(made["upstream"]), made) if step not in steps]
    return steps


def _step(made: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": made["kind"],
        "program": _PROGRAMS.get(made["kind"]),
        "version": made["agentir_version"],
        "config": made["config"],
        "inputs": _inputs(made["inputs"]),
    }


def _inputs(inputs: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """Name, file name and fingerprint of each."""
    return [(name, PurePath(entry["path"]).name, entry["fingerprint"]) for name, entry in inputs.items()]
