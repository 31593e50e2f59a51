import json
from pathlib import Path
from typing import Any

import pytest

from agentir.chat.transcripts import (
    after_thinking,
    clean_reasoning,
    docids_in,
    is_failure,
    read_trajectories,
    split_thinking,
    turns_from_messages,
)
from agentir.jsonl import Misfit, Rejects

CASES = Path(__file__).parents[1] / "data" / "cases"


def call(call_id: str | None, arguments: Any, name: str = "search") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: Any = None, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **extra}


def tool(call_id: str | None, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_reasoning_is_found_in_each_of_its_places() -> None:
    """Case S15."""
    messages = json.loads((CASES / "S15" / "trajectory.json").read_text(encoding="utf-8"))
    turns = turns_from_messages(messages)
    assert [(turn.reasoning, turn.calls[0].arguments) for turn in turns] == [
        ("The composer won in 2015, look for the label.", {"query": "swedish producer label 2015 award"}),
        ("Not Finland then. Try Sweden.", {"query": "sweden house producer"}),
        ("Check the remix credit.", {"query": "remix credit"}),
        ("I will look at charts.", {"query": "chart 2012"}),
        ("", {"query": "no thought here"}),
    ]
    assert [(turn.index, len(turn.results), turn.results[0].error) for turn in turns] == [
        (n, 1, False) for n in range(5)
    ]


@pytest.mark.parametrize(
    ("content", "thoughts", "visible", "after"),
    [
        ("plain", (), "plain", "plain"),
        ("<think>a</think>b", ("a",), "b", "b"),
        ("<think>a</think>b<think>c</think>d", ("a", "c"), "bd", "d"),
        ("a</think>b", ("a",), "b", "b"),
        ("a</think>b</think>c", ("a", "b"), "c", "c"),
        ("b<think>a", ("a",), "b", "b"),
        ("<think>a<think>b</think>c", ("ab",), "c", "c"),
        ("<think>a</think>b<think>c", ("a", "c"), "b", "b"),
        ("<THINK>\n a \n</THINK>\n\nb\n", ("a",), "b", "b"),
        ("<thinking>a</thinking>b", ("a",), "b", "b"),
        ("<think></think>b", (), "b", "b"),
        ("", (), "", ""),
    ],
)
def test_thoughts_are_told_from_what_is_visible(
    content: str, thoughts: tuple[str, ...], visible: str, after: str
) -> None:
    assert split_thinking(content) == (thoughts, visible)
    assert after_thinking(content) == after


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("<think>old</think> <tool_call>{}</tool_call> new plan", "old new plan"),
        ("a  b\nc", "a  b\nc"),
        ("a<tool_call>rest", "a rest"),
        ("a<tool_call>x<tool_call>{}</tool_call>b", "a x b"),
        (" </think>a", "a"),
    ],
)
def test_a_reasoning_keeps_no_markup(text: str, cleaned: str) -> None:
    assert clean_reasoning(text) == cleaned


@pytest.mark.parametrize(
    ("message", "last", "joined"),
    [
        ({"content": "<think>a</think>x<think>b</think>"}, "b", "a\nb"),
        ({"content": "<think>a</think>", "reasoning_content": "r"}, "r", "r"),
        ({"content": "<think>a</think>", "reasoning_content": " ", "reasoning": None}, "a", "a"),
        ({"content": None, "reasoning_content": "<think>r</think>"}, "r", "r"),
        (
            {"content": None, "reasoning": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]},
            "r\ns",
            "r\ns",
        ),
        ({"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "x"}]}, "t", "t"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]}, "t", "t"),
        ({"content": ["I look", {"type": "image_url", "image_url": {}}]}, "I look", "I look"),
    ],
)
def test_of_several_thoughts_the_last_counts_unless_joined(message: dict[str, Any], last: str, joined: str) -> None:
    messages = [{"role": "assistant", "tool_calls": [call("a", '{"query": "q"}')], **message}]
    assert turns_from_messages(messages)[0].reasoning == last
    assert turns_from_messages(messages, "join")[0].reasoning == joined


def test_what_is_said_without_a_call_is_no_reasoning() -> None:
    (turn,) = turns_from_messages([assistant(content="<think>Sure now.</think>Bergen")])
    assert (turn.reasoning, turn.text) == ("Sure now.", "Bergen")
    (turn,) = turns_from_messages([{"role": "assistant", "content": "Bergen"}])
    assert (turn.reasoning, turn.text) == ("", "Bergen")


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"query": "q"}', {"query": "q"}),
        ({"query": "q"}, {"query": "q"}),
        ('{"query": "q"', None),
        ('["q"]', None),
        ('{"query": NaN}', None),
        ("", None),
        (None, None),
        ("[" * 100_000, None),
    ],
)
def test_arguments_that_are_no_json_object_are_none_and_kept_as_text(arguments: Any, parsed: Any) -> None:
    (turn,) = turns_from_messages([assistant(call("a", arguments))])
    assert turn.calls[0].arguments == parsed
    assert turn.calls[0].raw_arguments == (arguments if isinstance(arguments, str) else json.dumps(arguments))


def test_results_are_matched_by_id_wherever_they_follow() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        assistant(call("a", "{}"), call("b", "{}")),
        tool("b", "of b"),
        assistant(call("c", "{}")),
        tool("c", [{"type": "text", "text": "of"}, {"type": "text", "text": "c"}]),
        tool("a", "Error: late"),
    ]
    first, second = turns_from_messages(messages)
    assert [(result.call_id, result.content, result.error) for result in first.results] == [
        ("a", "Error: late", True),
        ("b", "of b", False),
    ]
    assert [result.content for result in second.results] == ["of\nc"]


def test_where_ids_repeat_or_lack_the_latest_waiting_call_is_answered() -> None:
    messages = [
        assistant(call("call_0", "{}")),
        tool("call_0", "one"),
        assistant(call("call_0", "{}")),
        assistant(call("call_0", "{}"), call("call_0", "{}")),
        tool("call_0", "two"),
        tool("call_0", "three"),
        assistant(call(None, "{}"), call(None, "{}")),
        tool(None, "four"),
        tool(None, "five"),
    ]
    turns = turns_from_messages(messages)
    assert [[result.content for result in turn.results] for turn in turns] == [
        ["one"],
        [],
        ["two", "three"],
        ["four", "five"],
    ]
    assert [c.call_id for c in turns[3].calls] == ["turn3.0", "turn3.1"]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([tool("x", "r")], "messages[0].tool_call_id: expected the id of an earlier call without a result, found 'x'"),
        (
            [assistant(call("a", "{}")), tool("a", "r"), tool("a", "r")],
            "messages[2].tool_call_id: expected the id of an earlier call without a result, found 'a'",
        ),
        (
            [{"role": "function"}],
            "messages[0].role: expected system, developer, user, assistant or tool, found 'function'",
        ),
        (["hello"], "messages[0].role: expected system, developer, user, assistant or tool, found 'hello'"),
        ([assistant(content=3)], "messages[0].content: expected a text, null or a list of parts, found 3"),
        (
            [assistant(call("a", "{}")), tool("a", [{"docid": "d"}])],
            "messages[1].content: expected a text, null or a list of parts, found [{'docid': 'd'}]",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
            "messages[0].tool_calls[0]: expected a call with function.name, found {'id': 'a'}",
        ),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls: expected a list of calls, found {}"),
    ],
)
def test_messages_that_do_not_fit_are_named(messages: list[Any], fault: str) -> None:
    with pytest.raises(Misfit) as raised:
        turns_from_messages(messages)
    assert str(raised.value) == fault


def test_calls_written_as_text_are_read() -> None:
    messages = [
        {"role": "user", "content": "An example:\n<tool_response>\nx\n</tool_response>\nq?"},
        {
            "role": "assistant",
            "content": "<think>\nfirst\n</think>\n<tool_call>\n"
            '{"name": "search", "arguments": {"query": ["a", "b"]}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\n[Search] Invalid request format: x\n</tool_response>"},
        {"role": "assistant", "content": 'go<tool_call>{"name": "search", }</tool_call><tool_call>{"name": "visit"}'},
        {"role": "user", "content": "<tool_response>1</tool_response>\n<tool_response>2</tool_response>"},
        {"role": "assistant", "content": "<think>done</think><answer>Bergen</answer>"},
    ]
    first, second, third = turns_from_messages(messages)
    assert (first.reasoning, first.text, first.calls[0].arguments) == ("first", "", {"query": ["a", "b"]})
    assert first.results[0].error
    assert [(c.name, c.arguments) for c in second.calls] == [("", None), ("visit", None)]
    assert (second.reasoning, [result.content for result in second.results]) == ("go", ["1", "2"])
    assert (third.reasoning, third.calls) == ("done", ())


@pytest.mark.parametrize(
    "content",
    [
        "Error: Tool fetch not found",
        "Error executing search: timeout",
        "[Search] Invalid request format: 'query' cannot be empty",
        "Search error for query 'x': connection refused",
        "httpx.ConnectError: refused",
        "[Failed]",
        "[Visit] Failed to read page.",
        "Traceback (most recent call last):\n  File",
        '{"error": "quota"}',
        '{"success": false, "results": []}',
        '{"status": "failed"}',
        '{"isError": true}',
    ],
)
def test_failures_are_recognized(content: str) -> None:
    assert is_failure(content)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "No results found for 'x'. Try with a more general query.",
        "A search for 'error' found 0 results",
        "Errors and residuals in statistics",
        "Error-correcting code",
        "Failed states index 2010",
        '{"error": null, "docid": "d1"}',
        '[{"docid": "d1", "snippet": "Error: x"}]',
        "..." * 100_000,
    ],
)
def test_results_are_not_taken_for_failures(content: str) -> None:
    assert not is_failure(content)


@pytest.mark.parametrize(
    ("content", "docids"),
    [
        ('[{"docid": "d1", "snippet": "s"}, {"docid": 12}, {"docid": "d1"}, {"title": "t"}]', ("d1", "12")),
        ('{"docid": "d1", "text": "t"}', ("d1",)),
        ('{"results": [{"docid": "d1"}], "total": 1}', ("d1",)),
        ('[{"docid": true}, 3]', ()),
        ("docid d1", ()),
    ],
)
def test_docids_are_read_from_json_results(content: str, docids: tuple[str, ...]) -> None:
    assert docids_in(content) == docids


def test_trajectories_are_read_and_lines_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    search = [assistant(call("a", '{"query": "q"}')), tool("a", '[{"docid": "d"}]')]
    rows: list[Any] = [
        {"qid": 7, "messages": [*search, {"role": "assistant", "content": "<answer> Bergen </answer>"}], "cost": 1},
        {"id": "b", "messages": search, "agent": "m", "status": "completed", "answer": [["x"]]},
        {"query_id": "c", "messages": [{"role": "assistant", "content": "<think>hm</think> Oslo"}]},
        {"qid": "7", "messages": []},
        {"messages": []},
        {"qid": "e"},
        {"qid": "f", "messages": [], "status": 1},
        {"qid": "g", "messages": [tool("x", "r")]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rejects = Rejects()
    found = read_trajectories(path, rejects)
    assert [(t.qid, t.agent, t.status, t.answer, len(t.turns)) for t in found] == [
        ("7", "unknown", "unknown", "Bergen", 2),
        ("b", "m", "completed", "", 1),
        ("c", "unknown", "unknown", "Oslo", 1),
    ]
    assert found[0].turns[0].results[0].docids == ("d",)
    assert [(item.line, item.field) for item in rejects.items] == [
        (4, "qid"),
        (5, "qid"),
        (6, "messages"),
        (7, "status"),
        (8, "messages[0].tool_call_id"),
    ]
    assert "line 1 has one already" in rejects.items[0].expected
