import json
import time
from typing import Any

import pytest

from agentir.chat.transcripts import turns_from_messages
from agentir.chat.written_calls import MAX_DEPTH, MAX_UNREADABLE, bare_calls, harmony_calls, json_objects, tagged_calls

CALL = '{"name": "search", "arguments": {"query": "a"}}'
READ = ("search", {"query": "a"})


def found(text: str) -> tuple[list[tuple[str, Any]], str, tuple[str, ...]]:
    written = tagged_calls(text)
    return [(call.name, call.arguments) for call in written.calls], written.text, written.notes


@pytest.mark.parametrize(
    ("text", "calls", "rest", "notes"),
    [
        (f"x\n<tool_call>\n{CALL}\n</tool_call>\ny", [READ], "x\n\ny", ()),
        (f"<tool_call>{CALL}", [READ], "", ("a tool call without its closing tag",)),
        (f"<tool_call>{CALL}<tool_call>{CALL}</tool_call>", [READ] * 2, "", ("a tool call without its closing tag",)),
        (f"<tool_call>\n{CALL},\n{CALL}</tool_call>", [READ] * 2, "", ("2 tool calls in one block",)),
        (f"<tool_call>[{CALL}, {CALL}]</tool_call>", [READ] * 2, "", ("2 tool calls in one block",)),
        (f"<tool_call>{CALL}Done.</tool_call>", [READ], "", ("text after a tool call was left out: 'Done.'",)),
        (f"<tool_call>{CALL}{{bad</tool_call>", [READ, ("", None)], "", ("2 tool calls in one block",)),
        (f"<tool_call>```json\n{CALL}\n```</tool_call>", [READ], "", ()),
        (f"<tool_call>\n<tool_call>{CALL}</tool_call>", [READ], "", ()),
        ('<tool_call>{"name": "a", "arguments": {"q": "</tool_call>"}}</tool_call>', [("a", {"q": "</tool_call>"})], "", ()),
        ('<tool_call>{"name": "a", "arguments": "{\\"q\\": 1}"}</tool_call>', [("a", {"q": 1})], "", ()),
        ('<tool_call>{"name": "a", "arguments": {"q": "x\ny"}}</tool_call>', [("a", {"q": "x\ny"})], "", ()),
        ('<tool_call>{"name": "a", "parameters": {}}</tool_call>', [("a", {})], "", ()),
        ('<tool_call>{"name": "a", "arguments": {"q": "\\ud800"}}</tool_call>', [("a", {"q": "\ufffd"})], "", ()),
        ('<tool_call>{"name": "a", "arguments": {"q": 1e999}}</tool_call>', [("", None)], "", ()),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', [("a", None)], "", ()),
        ('<tool_call>{"name": "a"}</tool_call>', [("a", None)], "", ()),
        ("<tool_call></tool_call>", [("", None)], "", ()),
        ("<tool_call>[]</tool_call>", [("", None)], "", ()),
        (f"a</tool_call> {CALL}", [], f"a</tool_call> {CALL}", ()),
    ],
)  # fmt: skip
def test_calls_between_tags(text: str, calls: list[Any], rest: str, notes: tuple[str, ...]) -> None:
    assert found(text) == (calls, rest, notes)


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ("a\n<arg_key>q</arg_key>\n<arg_value>x y</arg_value>\n", ("a", {"q": "x y"})),
        ("a<arg_key>q</arg_key><arg_value>\nx\n</arg_value>", ("a", {"q": "x"})),
        ("a<arg_key>q</arg_key><arg_value>[1, 2]</arg_value>", ("a", {"q": [1, 2]})),
        ("a<arg_key>q</arg_key><arg_value>true</arg_value>", ("a", {"q": True})),
        ('a<arg_key>q</arg_key><arg_value>"x"</arg_value>', ("a", {"q": '"x"'})),
        ("a<arg_key>q</arg_key><arg_value>null</arg_value>", ("a", {"q": "null"})),
        ("a<arg_key>q</arg_key><arg_value>007</arg_value>", ("a", {"q": "007"})),
        ("a<arg_key>q</arg_key><arg_value>x<arg_key>r<arg_value>2", ("a", {"q": "x", "r": 2})),
        ("a<arg_key>q</arg_key><arg_value></arg_value>", ("a", {"q": ""})),
        ("a<arg_key>q</arg_key>", ("", None)),
        ("<arg_key>q</arg_key><arg_value>x</arg_value>", ("", None)),
        ("list_files", ("list_files", {})),
        ("list files", ("", None)),
    ],
)
def test_calls_as_glm_writes_them(body: str, call: tuple[str, Any]) -> None:
    assert found(f"<tool_call>{body}</tool_call>") == ([call], "", ())


def test_the_arguments_are_kept_as_text_and_what_cannot_be_read_as_it_is() -> None:
    calls = tagged_calls(f'<tool_call>{CALL}</tool_call><tool_call> {{"name": é </tool_call>').calls
    assert [call.raw_arguments for call in calls] == ['{"query": "a"}', '{"name": é']


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        ("x <|channel|>commentary to=functions.a <|constrain|>json<|message|>{}<|call|> y", [("a", {})], "x  y"),
        ("to=functions.a<|channel|>commentary<|message|>{bad<|call|>", [("a", None)], ""),
        ("<|channel|>commentary to=a<|message|>[1]<|call|>", [("a", None)], ""),
        ("<|channel|>analysis<|message|>x to=a", [], "<|channel|>analysis<|message|>x to=a"),
    ],
)
def test_calls_in_channel_markup(text: str, calls: list[Any], rest: str) -> None:
    written = harmony_calls(text)
    assert ([(call.name, call.arguments) for call in written.calls], written.text) == (calls, rest)


def test_json_is_found_in_text() -> None:
    text = 'x {"a": 1} [{"b": {}}] ```json\n{"c": "}"}\n``` {d} [1] {"e": '
    assert [(text[start:end], value) for start, end, value in json_objects(text)] == [
        ('{"a": 1}', {"a": 1}),
        ('[{"b": {}}]', [{"b": {}}]),
        ('```json\n{"c": "}"}\n```', {"c": "}"}),
        ("{", None),
    ]


@pytest.mark.parametrize(("depth", "is_read"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False), (98, False), (5000, False)])
def test_arguments_that_are_nested_too_deeply_cannot_be_read(depth: int, is_read: bool) -> None:
    nested = "[" * (depth - 1) + "]" * (depth - 1)
    arguments = f'{{"q": {nested}}}'
    listed = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "a", "arguments": arguments}}]}
    found = [
        *tagged_calls(f'<tool_call>{{"name": "a", "arguments": {arguments}}}</tool_call>').calls,
        *tagged_calls(f'<tool_call>{{"name": "a", "arguments": {json.dumps(arguments)}}}</tool_call>').calls,
        *tagged_calls(f"<tool_call>a<arg_key>q</arg_key><arg_value>{nested}</arg_value></tool_call>").calls,
        *harmony_calls(f"<|channel|>commentary to=a<|message|>{arguments}<|call|>").calls,
        *turns_from_messages([listed])[0].calls,
    ]
    assert len(found) == 5
    assert [call.arguments is not None for call in found] == (
        [True] * 5 if is_read else [False, False, depth == 5000, False, False]
    )


def test_recorded_transcripts_are_read_alike() -> None:
    """Case H01, and a call in a thought that is never closed."""
    (turn,) = turns_from_messages([{"role": "assistant", "content": f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>"}])
    assert [(call.call_id, call.arguments) for call in turn.calls] == [("turn0.0", READ[1]), ("turn0.1", READ[1])]
    (turn,) = turns_from_messages([{"role": "assistant", "content": f"<think>Hm.\n<tool_call>{CALL}</tool_call>"}])
    assert (turn.reasoning, len(turn.calls)) == ("Hm.", 1)


def test_a_text_that_cannot_be_read_is_given_up() -> None:
    calls, _, notes = found("<tool_call>{</tool_call>" * 1000)
    assert calls == [("", None)] * MAX_UNREADABLE
    assert notes == (f"after {MAX_UNREADABLE} tool calls that cannot be read, the rest was not searched",)


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"a":"',
        f"<tool_call>{CALL}",
        "<tool_call>a<arg_key>",
        '{"a":',
        "[{",
        "<|channel|>commentary to=a<|message|>{",
        "<|channel|> ",
        "```json ",
        f"{CALL}\n",
    ],
)
def test_hostile_texts_take_little_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    for read in (tagged_calls, bare_calls, harmony_calls, lambda text: list(json_objects(text))):
        began = time.perf_counter()
        read(text)
        assert time.perf_counter() - began < 2


def test_the_text_of_a_long_list_is_kept_once() -> None:
    text = json.dumps([{"name": "search", "arguments": 1}] * 5000)
    for calls in (tagged_calls(f"<tool_call>{text}</tool_call>").calls, bare_calls(text).calls):
        assert len(calls) == 5000 and sum(len(call.raw_arguments) for call in calls) == len(text)


@pytest.mark.parametrize(
    ("text", "num_calls", "rest"),
    [
        (CALL, 1, ""),
        (f"I look.\n```json\n{CALL}\n```\n", 1, "I look."),
        (f"{{{CALL}}}", 1, ""),
        (f"{CALL}\n</tool_call>", 1, ""),
        (f"{CALL}\n{CALL}", 2, ""),
        (f"[{CALL}, {CALL}]", 2, ""),
        (f"{CALL} was of no use. Then I ask:\n{CALL}", 1, f"{CALL} was of no use. Then I ask:"),
        (f"{CALL} was of no use: Bergen", 0, f"{CALL} was of no use: Bergen"),
        (f'{CALL}\n{{"answer": "Bergen"}}', 0, f'{CALL}\n{{"answer": "Bergen"}}'),
        ('{"name": "Bergen", "score": 3}', 0, '{"name": "Bergen", "score": 3}'),
        ("Bergen", 0, "Bergen"),
        ("", 0, ""),
    ],
)
def test_calls_without_tags_end_a_text(text: str, num_calls: int, rest: str) -> None:
    found = bare_calls(text)
    assert ([call.name for call in found.calls], found.text) == (["search"] * num_calls, rest)
