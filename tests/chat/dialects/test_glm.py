from replies import chat_reply, listed, made, next_messages

from agentir.chat.dialects.glm import GlmDialect

LEAK = (
    "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>Peer Gynt</arg_value>\n"
    "<arg_key>k</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
)
CALL = ("call_0", "search", {"query": "Peer Gynt", "k": 5})


def test_earlier_reasoning_goes_back() -> None:
    dialect = GlmDialect()
    calls = [listed("x", '{"query": "b"}')]
    found = dialect.read(chat_reply("", "tool_calls", reasoning_content="A play.\n\nBy whom?", tool_calls=calls))
    assert found.reasoning == "A play.\n\nBy whom?"
    assert next_messages(dialect, found) == [
        {"role": "assistant", "content": "", "reasoning_content": "A play.\n\nBy whom?", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "result 0"},
    ]


def test_calls_that_leaked_into_the_reasoning_are_made_once_and_taken_out() -> None:
    dialect = GlmDialect()
    found = dialect.read(chat_reply("", reasoning_content=f"A play.\n{LEAK}\n{LEAK}\nLet me see."))
    assert (found.reasoning, made(found)) == ("A play.\n\n\nLet me see.", [CALL])
    assert found.notes == ("2 tool calls leaked into the reasoning, 1 of them made nowhere else",)
    assert next_messages(dialect, found)[0]["tool_calls"] == [listed("call_0", '{"query": "Peer Gynt", "k": 5}')]


def test_leaked_calls_are_merged_with_the_listed_ones() -> None:
    other = "<tool_call>search<arg_key>query</arg_key><arg_value>Ibsen</arg_value></tool_call>"
    calls = [listed("x", '{"k": 5, "query": "Peer Gynt"}')]
    found = GlmDialect().read(chat_reply("", reasoning_content=f"A play.{LEAK}{other}", tool_calls=calls))
    assert made(found) == [("x", *CALL[1:]), ("call_1", "search", {"query": "Ibsen"})]
    assert found.reasoning == "A play."


def test_a_mention_of_the_tags_is_no_call() -> None:
    found = GlmDialect().read(chat_reply("Bergen", reasoning_content="I write <tool_call> next, or {}"))
    assert (found.calls, found.answer, found.reasoning) == ((), "Bergen", "I write next, or {}")


def test_calls_in_the_content_are_read_where_the_server_does_not() -> None:
    assert made(GlmDialect().read(chat_reply(f"I look.{LEAK}"))) == [CALL]
