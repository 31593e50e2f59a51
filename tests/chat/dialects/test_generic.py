import json

import pytest
from replies import PROMPT, SEARCH, chat_reply, listed, made, next_messages

from agentir.chat.dialects.generic import GenericDialect


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
