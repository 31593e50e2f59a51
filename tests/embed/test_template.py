"""What an encoder reads, byte for byte."""

import json
from pathlib import Path

import pytest

from agentir.embed.template import (
    QueryTemplate,
    agentir_template,
    instruction,
    render_reasoning_query,
    template_for,
)
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

CASES = Path(__file__).parents[1] / "data" / "cases"
TASK = (
    "Given a user's reasoning followed by a web search query, retrieve relevant passages that answer the query while "
    "incorporating the user's reasoning"
)
QUERY = SearchQuery(query="capital of peru", reasoning="It is in South America.\nNot Chile.", question="Where is Lima?")


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
        # slots inside a text are text
        (
            template_for("reasoning+query"),
            SearchQuery(query="{reasoning}", reasoning="{query} {0}"),
            "Reasoning: {query} {0}\n\nQuery: {reasoning}",
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


def test_template_survives_its_checkpoint(tmp_path: Path) -> None:
    template = agentir_template("literal")
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
    "body", ["", "{query} then more", "{reasoning}", "{query}{query}", "{reasoning}{question}{query}"]
)
def test_body_without_the_query_at_its_end_is_refused(body: str) -> None:
    with pytest.raises(EncoderError, match="template body"):
        QueryTemplate(body=body)
