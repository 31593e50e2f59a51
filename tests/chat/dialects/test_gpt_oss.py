from typing import Any

import pytest
from replies import PROMPT, SEARCH, made, results

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.generic import MAX_CALLS
from agentir.chat.dialects.gpt_oss import GptOssDialect
from agentir.records import Message, ToolCall


def thought(*texts: str) -> dict[str, Any]:
    parts = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": parts, "status": None}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part], "status": "completed"}


def called(call_id: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "search", "arguments": arguments, **more}


def output(*items: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"status": status, "output": list(items), **more}


def test_the_first_request() -> None:
    assert GptOssDialect().request(PROMPT, [SEARCH]) == {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Who wrote Peer Gynt?"}],
        "tools": [
            {
                "type": "function",
                "name": "search",
                "description": "Finds documents.",
                "parameters": SEARCH.parameters,
            }
        ],
    }
    assert GptOssDialect().request(PROMPT[1:], []) == {"input": [{"role": "user", "content": "Who wrote Peer Gynt?"}]}


def test_a_conversation_goes_on_with_the_items_as_they_came() -> None:
    dialect = GptOssDialect()
    items = [thought("A play.", "By whom?"), thought("Search."), called("a", '{"query":"Peer Gynt"}', id="fc_1")]
    first = dialect.read(output(*items))
    assert (first.reasoning, first.text, first.finish) == ("A play. By whom?\nSearch.", "", "calls")
    assert made(first) == [("a", "search", {"query": "Peer Gynt"})]
    assert dialect.request([*PROMPT, first.message, *results(first)], [SEARCH])["input"] == [
        {"role": "user", "content": "Who wrote Peer Gynt?"},
        *items,
        {"type": "function_call_output", "call_id": "a", "output": "result 0"},
    ]
    last = dialect.read(output(thought("Ibsen."), said("Henrik Ibsen")))
    assert (last.reasoning, last.text, last.answer, last.finish) == ("Ibsen.", "Henrik Ibsen", "Henrik Ibsen", "stop")


def test_calls_that_the_server_took_for_its_own_become_ours() -> None:
    call = {"type": "mcp_call", "id": "mcp_1", "name": "search", "arguments": "{}", "server_label": "s", "output": "x"}
    found = GptOssDialect().read(output(thought("One."), call))
    assert made(found) == [("mcp_1", "search", {})]
    assert found.raw == [thought("One."), called("mcp_1", "{}")]


def test_ids_that_are_missing_or_repeated_are_made_different() -> None:
    unnamed = {"type": "function_call", "name": "search", "arguments": "[]"}
    found = GptOssDialect().read(output(called("a", "{}"), called("a", "{}"), unnamed))
    assert made(found) == [("a", "search", {}), ("call_1", "search", {}), ("call_2", "search", None)]
    assert found.raw == [called("a", "{}"), called("call_1", "{}"), called("call_2", "{}")]


@pytest.mark.parametrize(
    "leak",
    [
        '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "b"}<|call|>',
        '<|start|>assistant<|channel|>commentary to=functions.search<|constrain|>json<|message|>{"query": "b"}',
        'to=functions.search<|channel|>commentary <|constrain|>json<|message|>{"query": "b"}<|call|>',
        '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "b"}<|call|>',
    ],
)
def test_a_call_that_leaked_into_the_reasoning_is_made(leak: str) -> None:
    found = GptOssDialect().read(output(thought(f"Search b.{leak}")))
    assert (found.reasoning, made(found)) == ("Search b.", [("call_0", "search", {"query": "b"})])
    assert found.raw == [thought("Search b."), called("call_0", '{"query": "b"}')]
    assert found.notes == ("1 tool calls leaked into the text, 1 of them are made",)


def test_a_leak_beside_a_call_or_an_answer_is_only_taken_out() -> None:
    leak = 'Or c?<|channel|>commentary to=functions.search<|message|>{"query": "c"}<|call|>'
    found = GptOssDialect().read(output(thought(leak), called("a", '{"query": "b"}')))
    assert (found.reasoning, made(found)) == ("Or c?", [("a", "search", {"query": "b"})])
    found = GptOssDialect().read(output(thought(leak), said("Bergen")))
    assert (found.reasoning, made(found), found.answer) == ("Or c?", [], "Bergen")
    assert found.notes == ("1 tool calls leaked into the text, 0 of them are made",)
    found = GptOssDialect().read(output(thought("One."), said(leak)))
    assert (made(found), found.text) == ([("call_0", "search", {"query": "c"})], "Or c?")


def test_summaries_are_the_reasoning_where_there_is_no_other() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Short."}], "content": None}
    assert GptOssDialect().read(output(item, said("x"))).reasoning == "Short."


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "filtered"), (None, "length"), ("stop", "length")],
)
def test_a_reply_that_was_cut_has_neither_calls_nor_an_answer(reason: str | None, finish: str) -> None:
    details = {"incomplete_details": {"reason": reason} if reason else None}
    found = GptOssDialect().read(output(thought("One."), called("a", "{}"), status="incomplete", **details))
    assert (found.finish, found.calls, found.answer, found.reasoning) == (finish, (), "", "One.")
    assert found.raw == [thought("One.")]
    assert GptOssDialect().read(output(status="incomplete", **details)).finish == finish


@pytest.mark.parametrize(
    "item",
    [{**said("Henrik"), "status": "incomplete"}, called("a", '{"query": "b"}', status="in_progress")],
    ids=["message", "call"],
)
def test_a_reply_that_was_cut_in_an_item_is_cut(item: dict[str, Any]) -> None:
    """As vLLM gives it, which calls such a reply completed."""
    found = GptOssDialect().read(output(thought("One."), item))
    assert (found.finish, found.calls, found.answer) == ("length", (), "")


def test_of_a_flood_of_calls_only_the_first_are_taken() -> None:
    found = GptOssDialect().read(output(*(called(f"c{number}", "{}") for number in range(5000))))
    assert [call.call_id for call in found.calls] == [f"c{number}" for number in range(MAX_CALLS)]
    assert found.raw == [called(f"c{number}", "{}") for number in range(MAX_CALLS)]
    assert found.notes == ("5000 tool calls in one reply, those after the first 64 were left out",)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (output(thought("One.")), "expected a message or a call, found an output that ends in reasoning"),
        (output(said("x"), thought("One.")), "expected a message or a call, found an output that ends in reasoning"),
        (output(), "expected a message or a call, found an output that ends in reasoning"),
        ({"choices": []}, "expected output, a list of items with a type, found None"),
        (output("x"), "expected output, a list of items with a type, found ['x']"),
        (output({"type": "function_call"}), "expected a call with a name, found {'type': 'function_call'}"),
        (
            output(status="failed", error={"code": "server_error", "message": "out of memory"}),
            "the reply's status is 'failed': out of memory",
        ),
        (output(status="in_progress"), "the reply's status is 'in_progress': no reason given"),
        (
            output(said("x"), status="incomplete", incomplete_details={"reason": "error"}),
            "the generation ended with 'error', expected an end such as stop, tool_calls, length or content_filter",
        ),
    ],
)
def test_replies_that_hold_no_message_are_refused(reply: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadReplyError) as raised:
        GptOssDialect().read(reply)
    assert str(raised.value) == fault


def test_messages_of_other_models_become_items() -> None:
    call = ToolCall(call_id="a", name="search", arguments={"query": "b"})
    messages = [Message(role="assistant", content="I look.", calls=(call,)), Message(role="assistant", content="Done.")]
    assert GptOssDialect().request(messages, []) == {
        "input": [
            {"role": "assistant", "content": "I look."},
            called("a", '{"query": "b"}'),
            {"role": "assistant", "content": "Done."},
        ]
    }
