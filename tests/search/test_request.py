"""The check of search and document requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentir.chat.transcripts import clean_reasoning
from agentir.errors import RequestError
from agentir.search.request import Limits, SearchRequest, parse_docid, parse_search

CASES = Path(__file__).parent.parent / "data" / "cases"


def case(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (CASES / name / "requests.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *zip(
            case("V01"),
            (
                "query: blank; expected what to search for",
                "query: blank; expected what to search for",
                "query: missing; expected what to search for, as a string",
                "query: missing; expected what to search for, as a string",
                "query: expected at most 4000 characters, found 200000; put the essence here and the thinking into reasoning",
            ),
            strict=True,
        )
    ],
    ids=("empty", "white space", "null", "absent", "200,000 characters"),
)
def test_a_query_that_is_none_is_refused_by_name(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_search(arguments)
    assert (caught.value.field, caught.value.code, str(caught.value)) == ("query", "invalid_argument", message)


@pytest.mark.parametrize("query", [7, 1.5, True, ["x"], {"text": "x"}, b"x", "\u200b\ufeff", "\x00\t"])
def test_only_a_text_with_something_visible_is_a_query(query: object) -> None:
    with pytest.raises(RequestError, match=r"^query: "):
        parse_search({"query": query})


@pytest.mark.parametrize(
    ("arguments", "k"), [*zip(case("V02"), (5, None, None, None, 5, None, None), strict=True)], ids=repr
)
def test_k_is_taken_as_meant_or_refused_with_its_bounds(arguments: dict[str, object], k: int | None) -> None:
    if k is not None:
        assert parse_search(arguments).k == k
        return
    with pytest.raises(RequestError) as caught:
        parse_search(arguments)
    assert caught.value.field == "k"
    assert str(caught.value) == f"k: expected a whole number from 1 to 100, found {arguments['k']!r}"


@pytest.mark.parametrize(
    "k",
    [5.5, float("nan"), float("inf"), "5.5", "1e1", "", "②", [5], 10**5000, "9" * 5000],
    ids=lambda k: type(k).__name__,
)
def test_other_forms_of_k_are_refused(k: object) -> None:
    with pytest.raises(RequestError, match="k: expected a whole number from 1 to 100, found "):
        parse_search({"query": "x", "k": k})


def test_k_has_a_default_within_its_bounds() -> None:
    assert parse_search({"query": "x"}).k == 10
    assert parse_search({"query": "x", "k": None}).k == 10
    assert parse_search({"query": "x"}, Limits(max_k=3)).k == 3
    assert parse_search({"query": "x", "k": 3}, Limits(max_k=3)).k == 3
    with pytest.raises(RequestError, match="from 1 to 3, found 4"):
        parse_search({"query": "x", "k": 4}, Limits(max_k=3))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("reasonning", "did you mean reasoning?"),
        ("Query", "did you mean query?"),
        ("K", "did you mean k?"),
        ("filters", "known arguments: query, reasoning, k"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_search({"query": "x", name: "y"})
    assert caught.value.field == name
    assert str(caught.value) == f"{name}: unknown argument; {hint}"


@pytest.mark.parametrize("reasoning", [7, False, ["x"], {"a": 1}])
def test_reasoning_must_be_a_string(reasoning: object) -> None:
    with pytest.raises(RequestError, match="reasoning: expected a string, found "):
        parse_search({"query": "x", "reasoning": reasoning})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, ""),
        ("", ""),
        (" \n\u200b", ""),
        ("<think></think>", ""),
        ("x", "x"),
        ("null", "null"),
        ('{"plan": 1}', '{"plan": 1}'),
        ("first\n\nthen  second", "first\n\nthen  second"),
        ("<think>\nI compare both.\n</think>\n", "I compare both."),
        ("left over</think> after", "left over after"),
        ("Is a < b and b > c?", "Is a < b and b > c?"),
        ("half a pair \ud800", "half a pair \ufffd"),
    ],
)
def test_reasoning_is_kept_but_for_markup(given: object, kept: str) -> None:
    assert parse_search({"query": "x", "reasoning": given}) == SearchRequest(query="x", reasoning=kept)


def test_reasoning_of_case_v11() -> None:
    none, no_query, same, tags = case("V11")
    assert parse_search(none) == parse_search({"query": "x"})
    with pytest.raises(RequestError, match="query: blank"):
        parse_search(no_query)
    assert parse_search(same).reasoning == "x"
    assert parse_search(tags) == parse_search({"query": "x", "reasoning": "old new plan"})


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ('a <tool_call>{"name": "search"}</tool_call> b', "a b"),
        ("a <tool_call>1</tool_call><tool_call>2</tool_call> b", "a b"),
        ("a <TOOL_CALL>\n1\n</TOOL_CALL>", "a"),
        ("kept <tool_call> also kept", "kept also kept"),
        ("kept <tool_call> also kept <tool_call>{}</tool_call> end", "kept also kept end"),
        ("kept </tool_call> end", "kept end"),
        ("<think>a <tool_call>{}</tool_call></think>", "a"),
    ],
)
def test_tool_calls_go_with_their_content_but_lone_tags_alone(text: str, stripped: str) -> None:
    assert clean_reasoning(text) == stripped


def test_a_megabyte_of_open_tags_is_stripped_in_linear_time() -> None:
    assert clean_reasoning("<tool_call> " * 80_000 + "end") == "end"


def test_reasoning_over_the_cap_loses_its_oldest_end_and_says_so() -> None:
    limits = Limits(max_reasoning_chars=10)
    cut = parse_search({"query": "x", "reasoning": "<think>oldest newest end</think>"}, limits)
    assert cut == SearchRequest(query="x", reasoning="newest end", reasoning_truncated=True)
    whole = parse_search({"query": "x", "reasoning": "<think>newest end</think>"}, limits)
    assert whole == SearchRequest(query="x", reasoning="newest end")


@pytest.mark.parametrize("docid", ["007", "7", "a/b c", "../up", "ünï—✓", "q\"uote'", "1e5", " ", "a\nb", "x" * 10_000])
def test_a_docid_is_an_opaque_text(docid: str) -> None:
    assert parse_docid({"docid": docid}) == docid


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "docid: missing; expected the docid of a search result"),
        ({"docid": None}, "docid: missing; expected the docid of a search result"),
        ({"docid": ""}, "docid: empty; expected the docid of a search result"),
        ({"docid": 7}, "docid: expected a string, exactly as a search gave it, found 7"),
        ({"docid": "\ud800"}, "docid: expected valid Unicode, found '\\ud800'"),
        ({"doc_id": "7"}, "doc_id: unknown argument; did you mean docid?"),
        ({"docid": "7", "offset": 1}, "offset: unknown argument; known arguments: docid"),
    ],
)
def test_what_is_no_docid_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_docid(arguments)
    assert str(caught.value) == message
