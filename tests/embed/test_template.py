"""What an encoder reads, byte for byte."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from agentir.embed.template import (
    BODIES,
    Input,
    QueryTemplate,
    agentir_template,
    instruction,
    render_reasoning_query,
    template_for,
)
from agentir.errors import EncoderError
from agentir.records import Document, PastSearch, SearchQuery

CASES = Path(__file__).parents[1] / "data" / "cases"
TASK = (
    "Given a user's reasoning followed by a web search query, retrieve relevant passages that answer the query while "
    "incorporating the user's reasoning"
)
QUERY = SearchQuery(query="capital of peru", reasoning="It is in South America.\nNot Chile.", question="Where is Lima?")
LATER = SearchQuery(
    query="lima founder",
    reasoning="It is Lima.\n",
    question="Who founded the capital of Peru?",
    history=(
        PastSearch(query="peru", reasoning=" First the country. "),
        PastSearch(query="peru cities\n", reasoning="First the country."),
        PastSearch(query="andes"),
        PastSearch(query="capital of peru", reasoning="Now the capital.\nNot Cusco."),
    ),
)
SEARCHES = (
    "Reasoning: First the country.\nQuery: peru\nQuery: peru cities\n\n"
    "Query: andes\n\n"
    "Reasoning: Now the capital.\nNot Cusco.\nQuery: capital of peru"
)


@pytest.mark.parametrize(
    ("template", "query", "text"),
    [
        (template_for("query"), QUERY, "capital of peru"),
        (
            template_for("reasoning+query"),
            QUERY,
            "Reasoning: It is in South America.\nNot Chile.\n\nQuery: capital of peru",
        ),
        (template_for("reasoning+query"), SearchQuery(query="q"), "Reasoning: Empty\n\nQuery: q"),
        (template_for("reasoning+query"), SearchQuery(query="q", reasoning=" \n"), "Reasoning: Empty\n\nQuery: q"),
        (template_for("question+query"), QUERY, "Question: Where is Lima?\n\nQuery: capital of peru"),
        (
            agentir_template("literal"),
            SearchQuery(query="q", reasoning="r"),
            f"Instruct: {TASK}\\nQuery:Reasoning: r\n\nQuery: q",
        ),
        (
            agentir_template("real"),
            SearchQuery(query="q", reasoning="r"),
            f"Instruct: {TASK}\nQuery:Reasoning: r\n\nQuery: q",
        ),
        (template_for("reasoning"), QUERY, "Reasoning: It is in South America.\nNot Chile."),
        (template_for("reasoning"), SearchQuery(query="q", question="?"), "Reasoning: Empty"),
        (template_for("question"), QUERY, "Where is Lima?"),
        (
            template_for("prior-queries+query"),
            LATER,
            "Previous queries:\nperu\nperu cities\nandes\ncapital of peru\n\nQuery: lima founder",
        ),
        (template_for("prior-queries+query"), QUERY, "Previous queries:\nEmpty\n\nQuery: capital of peru"),
        (template_for("prior-reasonings+query"), LATER, f"Previous searches:\n{SEARCHES}\n\nQuery: lima founder"),
        (template_for("prior-reasonings+query"), QUERY, "Previous searches:\nEmpty\n\nQuery: capital of peru"),
        (
            template_for("history+query"),
            LATER,
            f"{SEARCHES}\n\nQuestion: Who founded the capital of Peru?\n\n"
            "Reasoning: It is Lima.\n\nQuery: lima founder",
        ),
        (
            template_for("history+query"),
            QUERY,
            "Question: Where is Lima?\n\nReasoning: It is in South America.\nNot Chile.\n\nQuery: capital of peru",
        ),
        (
            template_for("history+query"),
            SearchQuery(query="q", history=(PastSearch(query="p", reasoning="r"),)),
            "Reasoning: r\nQuery: p\n\nQuery: q",
        ),
        (template_for("history+query"), SearchQuery(query="q"), "Empty\n\nQuery: q"),
        (
            template_for("history+query", task="Retrieve.", newline="real"),
            SearchQuery(query="q", question="?"),
            "Instruct: Retrieve.\nQuery:Question: ?\n\nQuery: q",
        ),
        # slots inside a text are text
        (
            template_for("reasoning+query"),
            SearchQuery(query="{reasoning}", reasoning="{query} {0}"),
            "Reasoning: {query} {0}\n\nQuery: {reasoning}",
        ),
        (template_for("reasoning"), SearchQuery(query="q", reasoning="{query}"), "Reasoning: {query}"),
        (
            template_for("history+query"),
            SearchQuery(query="{query}", history=(PastSearch(query="{history}", reasoning="{query}"),)),
            "Reasoning: {query}\nQuery: {history}\n\nQuery: {query}",
        ),
    ],
)
def test_rendered_query_is_exact_to_the_byte(template: QueryTemplate, query: SearchQuery, text: str) -> None:
    assert template.render(query).encode() == text.encode()


def test_training_row_text_has_no_instruction() -> None:
    assert render_reasoning_query("", "q") == "Reasoning: Empty\n\nQuery: q"


def test_instruction_stands_before_queries_and_never_before_documents() -> None:
    case = json.loads((CASES / "T07" / "in.json").read_text())
    template = QueryTemplate(body="{query}", instruction=instruction(case["instruction"], "real"))
    assert (
        template.render(SearchQuery(query=case["query"])) == f"Instruct: {case['instruction']}\nQuery:{case['query']}"
    )
    assert template.render_document(Document(docid="d", text=case["doc"])) == case["doc"]


def test_title_stands_before_the_text_unless_the_template_leaves_it_out() -> None:
    document = Document(docid="d", text="is the capital.", title="Lima")
    assert template_for("query").render_document(document) == "Lima is the capital."
    assert agentir_template().render_document(document) == "is the capital."
    assert template_for("query").render_document(Document(docid="d", text="t", title="{text}")) == "{text} t"


def test_newline_policy_changes_the_hash() -> None:
    hashes = {agentir_template("literal").hash, agentir_template("real").hash, template_for("reasoning+query").hash}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (template_for("query"), "d7fe7638fbb9c435fcdd70caf8e553b94c90e33562aca0177931f5cb32f5ab46"),
        (template_for("reasoning+query"), "7dff84e9f2541871b300090f90aa74443a10d4fbfee78863ed8876bf7684e8eb"),
        (template_for("question+query"), "a931e38e579f351b373c297a58e3b66feadbeb46a129ec0bc7bf5d160a7d34a0"),
        (agentir_template("literal"), "fe1af59d0f03f7b77d64d870dd79e85723870ad279fff1cbe4fa7270f0f19b45"),
    ],
)
def test_templates_inside_published_checkpoints_keep_their_hash(template: QueryTemplate, expected: str) -> None:
    assert template.hash == expected


def test_every_input_has_a_template_of_its_own() -> None:
    assert set(get_args(Input)) == BODIES.keys()
    assert len({template_for(kind).hash for kind in get_args(Input)}) == len(BODIES)


def test_a_question_that_stands_alone_cannot_be_missing() -> None:
    with pytest.raises(EncoderError, match=r"question: expected one, .* found none beside the query 'q'"):
        template_for("question").render(SearchQuery(query="q", reasoning="r", question=" "))


@pytest.mark.parametrize("template", [agentir_template("literal"), template_for("history+query")])
def test_template_survives_its_checkpoint(tmp_path: Path, template: QueryTemplate) -> None:
    template.save(tmp_path)
    loaded = QueryTemplate.load(tmp_path)
    assert loaded == template
    assert loaded is not None and loaded.hash == template.hash
    assert QueryTemplate.load(tmp_path / "elsewhere") is None


def test_template_edited_after_training_is_refused(tmp_path: Path) -> None:
    agentir_template("literal").save(tmp_path)
    path = tmp_path / "agentir_template.json"
    path.write_text(path.read_text().replace("\\\\nQuery:", "\\nQuery:"))
    with pytest.raises(EncoderError, match="expected hash"):
        QueryTemplate.load(tmp_path)
    path.write_text("[]")
    with pytest.raises(EncoderError, match="not a query template"):
        QueryTemplate.load(tmp_path)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "{query} at the end, or {reasoning} or {question} at the end and no query"),
        ("{history}", "{query} at the end, or"),
        ("{reasoning} and more", "{query} at the end, or"),
        ("{query} then more", "{query} once, at the end"),
        ("{query}{query}", "{query} once, at the end"),
        ("{query} {reasoning}", "{query} once, at the end"),
        (
            "{reasoning}{question}{query}",
            "at most one of {reasoning}, {question}, {prior_queries}, {prior_reasonings}, {history}",
        ),
        ("{history} {history} {query}", "at most one of"),
    ],
)
def test_a_body_that_cannot_be_shortened_around_its_query_is_refused(body: str, expected: str) -> None:
    with pytest.raises(EncoderError, match=re.escape(f"template body: expected {expected}")):
        QueryTemplate(body=body)
