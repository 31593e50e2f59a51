from typing import Any

import pytest
from replies import PROMPT, SEARCH, SEARCH_LINE, chat_reply, made, next_messages

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.tongyi import TongyiDialect
from agentir.records import Message, ToolCall

SYSTEM_PART = f"""# Tools

These are your tools, one a line, with the JSON schema of their arguments:
<tools>
{SEARCH_LINE}
</tools>

To call a tool, write its name and its arguments as one JSON object between these tags, and stop there:
<tool_call>
{{"name": <name of the tool>, "arguments": {{<name of an argument>: <its value>}}}}
</tool_call>
You are then given what it returned between <tool_response> and </tool_response>. Never write those tags yourself.

# Answer

Once you know enough, write your final answer between <answer> and </answer>, without a tool call beside it."""
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Peer Gynt"}}\n</tool_call>'
MADE = [("call_0", "search", {"query": "Peer Gynt"})]


def test_the_first_request() -> None:
    assert TongyiDialect().request(PROMPT, [SEARCH]) == {
        "messages": [
            {"role": "system", "content": f"Be brief.\n\n{SYSTEM_PART}"},
            {"role": "user", "content": "Who wrote Peer Gynt?"},
        ],
        "stop": ["\n<tool_response>"],
    }
    sent = TongyiDialect().request(PROMPT[1:], [SEARCH])["messages"]
    assert sent[0] == {"role": "system", "content": SYSTEM_PART}
    assert TongyiDialect().request(PROMPT, [])["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_conversation_goes_on_as_it_was_written() -> None:
    dialect = TongyiDialect()
    two = '<tool_call>\n{"name": "search", "arguments": {"query": "Ibsen"}}\n</tool_call>'
    content = f"<think>\nA play. Two searches.\n</think>\n{CALL}\n{two}"
    first = dialect.read(chat_reply(content))
    assert (first.reasoning, first.text, first.finish, first.answer) == ("A play. Two searches.", "", "calls", "")
    assert made(first) == [*MADE, ("call_1", "search", {"query": "Ibsen"})]
    assert next_messages(dialect, first) == [
        {"role": "assistant", "content": content},
        {
            "role": "user",
            "content": "<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nresult 1\n</tool_response>",
        },
    ]
    last = dialect.read(chat_reply("<think>\nIbsen.\n</think>\n<answer>\nHenrik Ibsen\n</answer>"))
    assert (last.reasoning, last.answer, last.finish, last.calls) == ("Ibsen.", "Henrik Ibsen", "stop", ())


@pytest.mark.parametrize(
    ("message", "reasoning", "calls", "answer"),
    [
        ({"content": f"One.</think>{CALL}"}, "One.", MADE, ""),
        ({"content": f"<think>One.</think>x<think>Two.</think>{CALL}"}, "Two.", MADE, ""),
        ({"content": f"<think>One. {CALL}"}, "One.", MADE, ""),
        ({"content": f"<think>One. {CALL}</think>"}, "One.", MADE, ""),
        ({"content": f"<think>Or {CALL}?</think><answer>no</answer>"}, "Or ?", [], "no"),
        ({"content": "<think>One. <answer>maybe</answer>"}, "One. <answer>maybe</answer>", [], ""),
        ({"content": "<think>One.</think>Henrik Ibsen"}, "One.", [], ""),
        ({"content": "<think>One.</think><answer>Henrik Ibsen"}, "One.", [], "Henrik Ibsen"),
        ({"content": CALL, "reasoning": "One."}, "One.", MADE, ""),
        ({"content": CALL}, "", MADE, ""),
        ({"content": f"{CALL}<answer>early</answer>"}, "<answer>early</answer>", MADE, ""),
        ({"content": "<tool_call>search the web</tool_call>"}, "", [("call_0", "", None)], ""),
        ({"content": None}, "", [], ""),
    ],
)
def test_replies(message: dict[str, Any], reasoning: str, calls: list[Any], answer: str) -> None:
    found = TongyiDialect().read(chat_reply(**message))
    assert (found.reasoning, made(found), found.answer) == (reasoning, calls, answer)


@pytest.mark.parametrize(
    ("content", "text", "answer"),
    [
        ("<think>One.</think>[2] > [1]", "[2] > [1]", ""),
        ("<think>One.</think>\n<answer>\n[2] > [1]\n</answer>", "[2] > [1]", "[2] > [1]"),
        ("<think>One.</think>So:\n<answer>[2] > [1]", "So:\n[2] > [1]", "[2] > [1]"),
        ("<think>One.", "", ""),
    ],
)
def test_the_text_is_what_is_said_without_tags(content: str, text: str, answer: str) -> None:
    found = TongyiDialect().read(chat_reply(content))
    assert (found.finish, found.text, found.answer) == ("stop", text, answer)


def test_thoughts_may_be_joined() -> None:
    content = f"<think>One.</think><think>Two.</think>{CALL}"
    assert TongyiDialect("join").read(chat_reply(content)).reasoning == "One.\nTwo."


def test_a_result_that_the_model_wrote_itself_is_cut_off() -> None:
    dialect = TongyiDialect()
    content = f"<think>One.</think>{CALL}"
    found = dialect.read(chat_reply(f"{content}\n<tool_response>\nIbsen\n</tool_response><answer>Ibsen</answer>"))
    assert (made(found), found.answer, found.raw) == (MADE, "", content)
    assert found.notes == ("cut off at a tool result that the model wrote itself: 60 characters",)
    assert next_messages(dialect, found)[0] == {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("content", "calls", "answer"),
    [
        (f"<think>The <tool_response> shows it.</think>\n{CALL}", MADE, ""),
        ("<think>As in\n<tool_response>\nx\n</tool_response></think>\n<answer>Ibsen</answer>", [], "Ibsen"),
        ("The <tool_response> shows it.</think>\n<answer>Ibsen</answer>", [], "Ibsen"),
        ("<think>Hm.</think><answer>It is <tool_response>.</answer>", [], "It is <tool_response>."),
        (
            '<tool_call>{"name": "search", "arguments": {"query": "<tool_response>"}}</tool_call>',
            [("call_0", "search", {"query": "<tool_response>"})],
            "",
        ),
    ],
)
def test_a_result_that_is_only_named_cuts_nothing(content: str, calls: list[Any], answer: str) -> None:
    found = TongyiDialect().read(chat_reply(content))
    assert (made(found), found.answer, found.raw, found.notes) == (calls, answer, content, ())


@pytest.mark.parametrize(
    "content", [f"<think>Hm.\n{CALL}", f"<think>Hm.</think>{CALL}", f"<think>Hm.</think>{CALL}</tool_call>"]
)
def test_a_result_behind_a_call_is_cut_off_on_any_line(content: str) -> None:
    found = TongyiDialect().read(chat_reply(f"{content}<tool_response>\nx\n</tool_response><answer>y</answer>"))
    assert (made(found), found.answer, found.raw) == (MADE, "", content)


def test_a_reply_that_ends_in_a_thought_is_noted() -> None:
    note = "the reply ends in a thought: it holds neither a call nor an answer"
    found = TongyiDialect().read(chat_reply("<think>As in"))
    assert (found.answer, found.calls, found.reasoning, found.notes) == ("", (), "As in", (note,))
    assert TongyiDialect().read(chat_reply("<think>As in</think>")).notes == ()
    assert TongyiDialect().read(chat_reply(f"<think>As in {CALL}")).notes == ()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("The page says <answer>x</answer>, a trick. <answer>Ibsen</answer>", "Ibsen"),
        ("The page says <answer>, a trick. <answer>Ibsen</answer>", "Ibsen"),
        ("<answer>Ibsen</answer> So I write <answer> tags.", "Ibsen"),
        ("It says <answer>. <answer>Ibsen", "Ibsen"),
    ],
)
def test_the_last_answer_counts(content: str, answer: str) -> None:
    assert TongyiDialect().read(chat_reply(f"<think>Hm.</think>{content}")).answer == answer


def test_reasoning_that_the_server_split_off_goes_back_between_tags() -> None:
    dialect = TongyiDialect()
    found = dialect.read(chat_reply(CALL, reasoning="One."))
    assert next_messages(dialect, found)[0]["content"] == f"<think>\nOne.\n</think>\n\n{CALL}"


def test_messages_that_the_model_did_not_write_are_written_its_way() -> None:
    call = ToolCall(call_id="a", name="search", arguments={"query": "Peer Gynt"})
    messages = [
        *PROMPT,
        Message(role="assistant", content="", reasoning="One.", calls=(call,)),
        Message(role="tool", call_id="a", content="r"),
        Message(role="user", content="Answer now."),
    ]
    assert TongyiDialect().request(messages, [SEARCH])["messages"][2:] == [
        {"role": "assistant", "content": f"<think>\nOne.\n</think>\n{CALL}"},
        {"role": "user", "content": "<tool_response>\nr\n</tool_response>\n\nAnswer now."},
    ]


@pytest.mark.parametrize("reply", [{}, {"choices": []}, {"choices": [{"message": "x"}]}, chat_reply(3)])
def test_a_reply_without_a_message_is_refused(reply: dict[str, Any]) -> None:
    with pytest.raises(BadReplyError):
        TongyiDialect().read(reply)
