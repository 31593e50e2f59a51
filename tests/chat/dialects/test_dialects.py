"""What holds for every dialect."""

import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replies import chat_reply, listed

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.names import DialectName, make_dialect
from agentir.chat.model import Generation
from agentir.jsonl import dumps, read_records, write_jsonl
from agentir.records import Message, Trajectory, Turn

CASES = Path(__file__).parents[2] / "data" / "cases"
NAMES: tuple[DialectName, ...] = get_args(DialectName)
CHAT_NAMES = [name for name in NAMES if make_dialect(name).api == "chat"]
TAGGED_NAMES = ["generic", "tongyi", "glm", "qwen3", "json-text"]
MARKUP = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<tool_response>", "<arg_key>",
    "</arg_key>", "<arg_value>", "<|channel|>commentary to=functions.a", "<|message|>", "<|call|>", "```json", "```",
    '{"name": "a", "arguments": {"b": "c"}}', '{"tool": "a", "arguments": ', '{"answer": "d"}', "[", "]", "{", "}", '"',
    "\\", "\ud800", "\\ud800", "1e999", "NaN", ",", ":", " ", "\n", "a", "é",
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(MARKUP), max_size=30).map("".join))


def case(path: str) -> str:
    return (CASES / path).read_text(encoding="utf-8")


def output(text: str, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]},
            {"type": "message", "content": [{"type": "output_text", "text": text}]},
        ],
    }


def generations(reply: dict[str, Any], names: list[DialectName]) -> list[Generation]:
    return [make_dialect(name).read(reply) for name in names]


@pytest.mark.parametrize(("file", "queries"), [("a.txt", ["old mill"]), ("b.txt", ["one", "two"])])
def test_text_after_a_call_and_two_calls_in_one_block(file: str, queries: list[str]) -> None:
    """Case H01."""
    for found in generations(chat_reply(case(f"H01/{file}")), TAGGED_NAMES):
        assert [call.arguments for call in found.calls] == [{"query": query} for query in queries]
        assert len({call.call_id for call in found.calls}) == len(queries)
        assert (found.text, found.answer) == ("I hope this helps." if found.text else "", "")


@pytest.mark.parametrize("name", ["generic", "glm", "qwen3", "json-text"])
def test_the_answer_stands_after_the_thought(name: DialectName) -> None:
    """Case H06."""
    answers = [make_dialect(name).read(chat_reply(case(f"H06/{file}.txt"))).answer for file in "abc"]
    assert answers == ["Explanation: ...\nExact Answer: Bergen\nConfidence: 80%", "Exact Answer: Bergen", ""]


def test_the_answer_between_tags_stands_after_the_thought() -> None:
    """Case H06, as an agent writes it that marks its answers."""
    texts = [case(f"H06/{file}.txt").replace("Exact Answer: Bergen", "<answer>Bergen</answer>") for file in "abc"]
    found = [make_dialect("tongyi").read(chat_reply(text)) for text in texts]
    assert [one.answer for one in found] == ["Bergen", "Bergen", ""]
    assert [one.reasoning for one in found] == [
        "I compare both.\nExact Answer: Oslo is wrong.",
        "I compare both.",
        "Still looking at",
    ]


@pytest.mark.parametrize("name", ["generic", "glm", "qwen3", "json-text"])
def test_a_reply_that_is_all_reasoning_is_an_answer_only_without_thinking(name: DialectName) -> None:
    reply = chat_reply(None, reasoning_content="[2] > [1]")
    found = make_dialect(name).read(reply)
    assert (found.reasoning, found.text, found.answer) == ("[2] > [1]", "", "")
    found = make_dialect(name, thinking=False).read(reply)
    assert (found.reasoning, found.text, found.answer) == ("", "[2] > [1]", "[2] > [1]")


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_a_reply_without_calls_is_all_that_it_says(name: DialectName) -> None:
    """Whoever passes no tools reads the text, whatever the dialect."""
    said = 'So: {"ranking": [2, 1], "answer": "Bergen"}'
    reply = {**chat_reply(f"<think>\nOne.\n</think>\n\n{said}"), **output("One.", "completed")}
    reply["output"][1]["content"][0]["text"] = said
    found = make_dialect(name).read(reply)
    assert (found.finish, found.text) == ("stop", said)


@pytest.mark.parametrize("name", CHAT_NAMES)
@pytest.mark.parametrize(("finish", "expected"), [("length", "length"), ("content_filter", "filtered")])
def test_what_was_cut_or_withheld_has_neither_calls_nor_an_answer(
    name: DialectName, finish: str, expected: str
) -> None:
    written = '<think>a</think><answer>b</answer><tool_call>{"name": "search", "arguments": {"query": "b"}}'
    for content, calls in ((written, None), ("b", [listed("x", "{}")]), ('{"answer": "b"}', None)):
        found = make_dialect(name).read(chat_reply(content, finish, tool_calls=calls))
        assert (found.finish, found.calls, found.answer) == (expected, (), "")


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from(CHAT_NAMES))
def test_no_chat_reply_breaks_a_dialect(content: str, reasoning: str, name: DialectName) -> None:
    dialect = make_dialect(name)
    for finish in ("stop", "length"):
        found = dialect.read(chat_reply(content, finish, reasoning_content=reasoning))
        check(found, finish)
        dialect.request([found.message, Message(role="tool", call_id="call_0", content="r")], [])


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_no_response_breaks_a_dialect(text: str) -> None:
    dialect = make_dialect("gpt-oss")
    for status, finish in (("completed", "stop"), ("incomplete", "length")):
        check(dialect.read(output(text, status)), finish)
        try:
            check(dialect.read({"status": status, "output": output(text, status)["output"][:1]}), finish)
        except BadReplyError:
            assert status == "completed"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", [1, 45, 60, 96])
def test_what_is_nested_deeply_can_be_read_back(name: DialectName, depth: int, tmp_path: Path) -> None:
    """Lines that hold the word Infinity are read twice, and not as deeply."""
    arguments = f'{{"query": {"[" * depth}{"]" * depth}}}'
    written = f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'
    item = {"type": "function_call", "call_id": "a", "name": "search", "arguments": arguments}
    more = {"extra": json.loads(arguments)}
    for reply in (
        {**chat_reply(written, **more), "output": [{**item, **more}]},
        {**chat_reply("", tool_calls=[listed("a", arguments)], **more), "output": [item]},
    ):
        found = make_dialect(name).read(reply)
        turn = Turn(index=0, reasoning="NaN, Infinity", text=found.text, calls=found.calls, results=(), raw=found.raw)
        path = tmp_path / "trajectories.jsonl"
        write_jsonl(path, [Trajectory(qid="a", agent="b", turns=(turn,), answer="", status="completed")])
        (read,) = read_records(path, Trajectory)
        assert read.turns == (turn,)
        kept = any("was not kept" in note for note in found.notes)
        assert kept == (found.raw is None)
        assert make_dialect(name).request([found.message], [])


@pytest.mark.parametrize("name", ["tongyi", "json-text"])
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_response>",
        "<think>\n<tool_response>",
        "<answer>",
        "<answer><tool_call>",
        "{ ",
        '{"a":',
        '{"thought": "',
        '{"answer": 1}x',
        "\n[Result of ",
        '{"a"',
    ],
)
def test_hostile_texts_take_little_time(name: DialectName, unit: str) -> None:
    text = unit * (300_000 // len(unit))
    began = time.perf_counter()
    found = make_dialect(name).read(chat_reply(text))
    make_dialect(name).request([found.message, Message(role="tool", call_id="call_0", content=text)], [])
    assert time.perf_counter() - began < 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("choices", "message", "content", "tool_calls", "function", "name", "output", "type", "text")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@example([{"type": []}], "gpt-oss")
@given(JSON, st.sampled_from(NAMES))
def test_a_reply_of_any_form_is_read_or_refused(value: Any, name: DialectName) -> None:
    for reply in (
        {"choices": value, "output": value},
        {"choices": [{"message": value}], "output": [value]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": value}], "output": [], "incomplete_details": value},
        {"choices": [{"message": {"content": value, "tool_calls": value}}], "output": [{"type": "message", "content": value}]},
    ):  # fmt: skip
        try:
            check(make_dialect(name).read(reply), "stop")
        except BadReplyError:
            continue


def check(found: Generation, finish: str) -> None:
    assert json.loads(dumps(found))
    ids = [call.call_id for call in found.calls]
    assert len(set(ids)) == len(ids) and all(ids)
    assert not (found.calls and found.answer)
    if finish == "length":
        assert (found.finish, found.calls, found.answer) == ("length", (), "")
