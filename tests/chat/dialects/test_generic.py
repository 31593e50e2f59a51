import json
from typing import Any

import pytest
from replies import PROMPT, SEARCH, chat_reply, listed, made, next_messages, results

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.generic import MAX_CALLS, GenericDialect
from agentir.records import Message


def test_a_conversation() -> None:
    dialect = GenericDialect()
    assert dialect.request(PROMPT, [SEARCH]) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Who wrote Peer Gynt?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "search", "description": "Finds documents.", "parameters": SEARCH.parameters},
            }
        ],
    }
    calls = [listed("x", '{"query": "Peer Gynt"}'), listed("y", "{bad")]
    found = dialect.read(chat_reply("I look.", "tool_calls", tool_calls=calls, reasoning_content="A play."))
    assert (found.reasoning, found.text, found.finish, found.answer) == ("A play.", "I look.", "calls", "")
    assert made(found) == [("x", "search", {"query": "Peer Gynt"}), ("y", "search", None)]
    assert next_messages(dialect, found) == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [listed("x", '{"query": "Peer Gynt"}'), listed("y", "{}")],
        },
        {"role": "tool", "tool_call_id": "y", "content": "result 1"},
        {"role": "tool", "tool_call_id": "x", "content": "result 0"},
    ]
    assert next_messages(GenericDialect(send_reasoning=True), found)[0]["reasoning_content"] == "A play."


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        *((reason, "stop") for reason in ("stop", "STOP", "tool_calls", "function_call", "eos", "", None)),
        *((reason, "length") for reason in ("length", "model_length", "max_tokens", "MAX_TOKENS")),
        *((reason, "length") for reason in ("context_window_exceeded", "model_context_window_exceeded")),
        *((reason, "filtered") for reason in ("content_filter", "sensitive", "SAFETY")),
    ],
)
def test_how_a_reply_ended(reason: str | None, finish: str) -> None:
    reply = chat_reply("Bergen") if reason is not None else {"choices": [{"message": {"content": "Bergen"}}]}
    if reason is not None:
        reply["choices"][0]["finish_reason"] = reason
    found = GenericDialect().read(reply)
    assert (found.finish, found.answer) == (finish, "Bergen" if finish == "stop" else "")


@pytest.mark.parametrize(
    "reason", ["network_error", "insufficient_system_resource", "error", "abort", "repetition", 7, ["stop"]]
)
def test_a_reply_that_broke_off_is_refused(reason: object) -> None:
    reply = chat_reply("[2] >")
    reply["choices"][0]["finish_reason"] = reason
    with pytest.raises(BadReplyError, match="the generation ended with") as raised:
        GenericDialect().read(reply)
    assert (reason if isinstance(reason, str) else repr(reason)) in str(raised.value)


def test_neighbouring_messages_of_the_user_are_one() -> None:
    found = GenericDialect().read(chat_reply("", tool_calls=[listed("x", "{}")]))
    told = [Message(role="user", content=text) for text in ("Go on.", "Answer now.")]
    sent = GenericDialect().request([*PROMPT, told[0], found.message, *results(found), *told], [])["messages"]
    assert [(message["role"], message["content"]) for message in sent] == [
        ("system", "Be brief."),
        ("user", "Who wrote Peer Gynt?\n\nGo on."),
        ("assistant", ""),
        ("tool", "result 0"),
        ("user", "Go on.\n\nAnswer now."),
    ]


def test_ids_that_are_missing_or_repeated_are_made_different() -> None:
    ids = ["a", "a", None, "", "call_4", "b", "call_5"]
    found = GenericDialect().read(chat_reply(tool_calls=[listed(call_id, "{}") for call_id in ids]))
    assert [call.call_id for call in found.calls] == ["a", "call_1", "call_2", "call_3", "call_4", "b", "call_5"]
    ids = ["call_1", "call_1", "call_2"]
    found = GenericDialect().read(chat_reply(tool_calls=[listed(call_id, "{}") for call_id in ids]))
    assert [call.call_id for call in found.calls] == ["call_1", "call_3", "call_2"]


def test_calls_in_the_text_go_back_as_calls() -> None:
    dialect = GenericDialect()
    found = dialect.read(chat_reply('I look.<tool_call>{"name": "search", "arguments": {"query": "b"}}</tool_call>'))
    assert next_messages(dialect, found)[0] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [listed("call_0", '{"query": "b"}')],
    }


BARE = '{"name": "search", "arguments": {"query": "Abbas Shirvanshah\'s paternal grandfather"}}'


@pytest.mark.parametrize("content", [f"{{{BARE}}}}}", f"```json\n{json.dumps(json.loads(BARE), indent=2)}\n```"])
def test_a_call_that_lost_its_tags_is_no_answer(content: str) -> None:
    """As Qwen2.5-Coder-1.5B-Instruct on a llama.cpp server wrote it, with tools in the request."""
    found = GenericDialect().read(chat_reply(content))
    assert (found.finish, found.text, found.answer, found.notes) == ("calls", "", "", ("tool calls without tags",))
    assert made(found) == [("call_0", "search", {"query": "Abbas Shirvanshah's paternal grandfather"})]


@pytest.mark.parametrize(
    "message",
    [
        {"content": f"<tool_call>{[{}] * 5000}</tool_call>"},
        {"content": f"<tool_call>{'{}' * 5000}</tool_call>"},
        {"content": f"<tool_call>{BARE}</tool_call>" * 5000},
        {"content": f"{BARE}\n" * 5000},
        {"tool_calls": [listed("", "{}")] * 5000},
    ],
    ids=["list", "block", "blocks", "bare", "listed"],
)
def test_of_a_flood_of_calls_only_the_first_are_taken(message: dict[str, Any]) -> None:
    dialect = GenericDialect()
    found = dialect.read(chat_reply(**message))
    assert [call.call_id for call in found.calls] == [f"call_{number}" for number in range(MAX_CALLS)]
    assert found.notes[-1] == "5000 tool calls in one reply, those after the first 64 were left out"
    assert len(next_messages(dialect, found)) == 1 + MAX_CALLS
