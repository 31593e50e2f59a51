"""The client against a real HTTP server that misbehaves."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Reply, ScriptedServer, Seen, completion

from agentir.chat.endpoint import Endpoint, asked_wait
from agentir.chat.model import Generation
from agentir.chat.settings import BudgetSection, ModelSection, PricesSection
from agentir.chat.usage import read_usage
from agentir.errors import BudgetError, ChatError, ConfigError, ContextOverflowError
from agentir.records import Message, Usage

CASES = Path(__file__).parents[1] / "data" / "cases"
ASK = [Message(role="user", content="Rank the passages.")]
Start = Callable[[Callable[[Seen], Reply]], ScriptedServer]


def ask(server: ScriptedServer, num: int = 1, **settings: Any) -> list[Generation | Exception]:
    """Answers, or what was raised, of some calls at once."""

    async def run() -> list[Generation | Exception]:
        async with Endpoint(ModelSection(name="m", base_url=server.url, **settings)) as model:
            calls = (model.generate(ASK) for _ in range(num))
            return await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[arg-type]

    return asyncio.run(run())


def play(*replies: Reply) -> Callable[[Seen], Reply]:
    waiting = list(replies)
    return lambda seen: waiting.pop(0) if len(waiting) > 1 else waiting[0]


OK = Reply(completion("[2] > [1]"))


def faults_then_success() -> list[Reply]:
    """The replies of case S19."""
    replies = []
    for step in json.loads((CASES / "S19" / "server_script.json").read_text()):
        if step.get("timeout"):
            replies.append(Reply(hang=True))
        elif "stream" in step:
            replies.append(Reply(completion("[2] >"), cut=True))
        else:
            replies.append(Reply(step.get("body"), step["status"], step.get("headers", {})))
    return replies


def test_faults_in_passing_are_tried_again_and_the_pause_that_was_asked_for_is_kept(chat_server: Start) -> None:
    server = chat_server(play(*faults_then_success()))
    (answer,) = ask(server, deadline=0.5)
    assert isinstance(answer, Generation), answer
    assert answer.answer == "[2] > [1]" and answer.usage.num_attempts == 5
    assert len(server.seen) == 5 and server.seen[1].time - server.seen[0].time >= 1.0


def test_a_call_that_fails_too_often_tells_the_last_fault(chat_server: Start) -> None:
    server = chat_server(play(*faults_then_success()))
    (error,) = ask(server, deadline=0.5, max_retries=2)
    assert isinstance(error, ChatError) and error.kind == "timeout" and "tried 3 times" in str(error)
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({"error": {"message": "no such model"}}, 404), "refused"),
        (Reply({"error": {"message": "bad key"}}, 401), "refused"),
        (Reply({"error": {"message": "temperature must be positive"}}, 400), "refused"),
        (Reply({"error": {"message": "quota", "code": "insufficient_quota"}}, 429), "budget"),
        (Reply({"error": {"message": "balance"}}, 402), "budget"),
        (Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "7200"}), "rate_limit"),
        (Reply({"error": {"message": "maximum context length is 8192 tokens"}}, 400), "context_overflow"),
        (Reply({"error": {"message": "the request exceeds the available context size"}}, 400), "context_overflow"),
        (Reply({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400), "context_overflow"),
    ],
)
def test_what_no_repetition_mends_is_asked_once(chat_server: Start, reply: Reply, kind: str) -> None:
    server = chat_server(play(reply, OK))
    (error,) = ask(server)
    assert isinstance(error, ChatError) and error.kind == kind
    assert isinstance(error, ContextOverflowError) == (kind == "context_overflow")
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>gateway</html>"),
        Reply(b'{"choices": [{"message": {"content": "[2] >'),
        Reply([]),
        Reply({"choices": []}),
        Reply({"choices": [{"message": None}]}),
        Reply({"error": {"message": "CUDA out of memory"}}),
        Reply({"choices": [{"finish_reason": "error", "message": {"content": "internal error"}}]}),
        Reply({"choices": [{"finish_reason": "abort", "message": {"content": "half"}}]}),
        Reply({"choices": [{"message": {"content": 7}}]}),
        Reply({"error": {"message": "busy"}}, 503),
        Reply(b"overloaded", 529),
    ],
)
def test_a_broken_reply_never_becomes_an_answer(chat_server: Start, reply: Reply) -> None:
    server = chat_server(play(reply, OK))
    (answer,) = ask(server)
    assert isinstance(answer, Generation) and answer.answer == "[2] > [1]"
    (error,) = ask(chat_server(play(reply)), max_retries=0)
    assert isinstance(error, ChatError) and error.kind in ("bad_reply", "server_error")


def test_a_cut_answer_has_neither_answer_nor_calls(chat_server: Start) -> None:
    body = completion("[2] >", calls=[("search", '{"query": "half')], finish="length")
    (answer,) = ask(chat_server(play(Reply(body))))
    assert isinstance(answer, Generation)
    assert (answer.finish, answer.answer, answer.calls) == ("length", "", ())


def test_the_budget_stops_before_the_next_call(chat_server: Start) -> None:
    server = chat_server(play(OK))
    answers = ask(server, num=5, budget=BudgetSection(max_calls=3, max_tokens=None, max_cost=None))
    assert sum(isinstance(answer, BudgetError) for answer in answers) == 2 and len(server.seen) == 3

    async def one_by_one(spent: Usage, **budget: Any) -> int:
        settings = ModelSection(
            name="m",
            base_url=server.url,
            prices=PricesSection(prompt=1e5, completion=2e5),  # 10 and 5 tokens: 2.00 a call
            budget=BudgetSection.model_validate(budget),
        )
        async with Endpoint(settings, spent=spent) as model:
            for number in range(10):
                try:
                    await model.generate(ASK)
                except BudgetError:
                    return number
        return 10

    assert asyncio.run(one_by_one(Usage(), max_tokens=40)) == 3
    assert asyncio.run(one_by_one(Usage(), max_cost=6.0)) == 3
    assert asyncio.run(one_by_one(Usage(prompt_tokens=15, completion_tokens=10), max_tokens=40)) == 1
    assert asyncio.run(one_by_one(Usage(num_calls=9), max_calls=10)) == 1


def test_no_more_requests_are_in_flight_than_allowed(chat_server: Start) -> None:
    server = chat_server(lambda seen: Reply(completion("yes"), delay=0.05))
    answers = ask(server, num=20, concurrency=4)
    assert all(isinstance(answer, Generation) for answer in answers) and server.max_open == 4


def test_requests_and_tokens_a_minute(chat_server: Start) -> None:
    server = chat_server(play(OK))
    ask(server, num=5, requests_per_minute=600)
    assert server.seen[-1].time - server.seen[0].time >= 0.35
    began = time.monotonic()
    ask(server, num=3, concurrency=1, tokens_per_minute=15 * 60 / 0.3)
    assert time.monotonic() - began >= 0.6


def test_a_pause_that_one_request_is_asked_for_holds_all_back(chat_server: Start) -> None:
    server = chat_server(play(Reply({}, 429, {"Retry-After": "1"}), OK))

    async def run() -> None:
        async with Endpoint(ModelSection(name="m", base_url=server.url)) as model:
            first = asyncio.create_task(model.generate(ASK))
            await asyncio.sleep(0.4)
            await asyncio.gather(first, model.generate(ASK))

    asyncio.run(run())
    assert len(server.seen) == 3 and all(seen.time - server.seen[0].time >= 1.0 for seen in server.seen[1:])


def test_the_request_holds_model_sampling_and_schema(chat_server: Start) -> None:
    server = chat_server(play(OK))
    schema = {"type": "object", "properties": {"ranking": {"type": "array"}}}

    async def run() -> None:
        settings = ModelSection(
            name="m", base_url=server.url, temperature=0.6, top_p=0.95, max_tokens=99, extra_body={"top_k": 20}
        )
        async with Endpoint(settings) as model:
            await model.generate(ASK, schema=schema)

    asyncio.run(run())
    assert server.seen[0].path == "/v1/chat/completions"
    assert server.seen[0].body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Rank the passages."}],
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 99,
        "top_k": 20,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    }


def test_a_lone_surrogate_in_a_reply_can_be_sent_back(chat_server: Start) -> None:
    body = json.dumps(completion("half of a pair: X")).replace("X", "\\ud83d").encode()
    server = chat_server(play(Reply(body)))

    async def run() -> None:
        async with Endpoint(ModelSection(name="m", base_url=server.url)) as model:
            first = await model.generate(ASK)
            await model.generate([*ASK, first.message, Message(role="user", content="again")])

    asyncio.run(run())
    assert server.seen[1].body["messages"][1]["content"] == "half of a pair: �"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, None),
        ({}, None),
        ({"retry-after": format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)}, 0.0),
    ],
)
def test_the_pause_a_server_asks_for(headers: dict[str, str], expected: float | None) -> None:
    assert asked_wait(headers) == expected


def test_without_thinking_an_answer_that_the_servers_parser_took_for_reasoning_is_the_answer(
    chat_server: Start,
) -> None:
    server = chat_server(play(Reply(completion(None, reasoning="[2] > [1]"))))
    extra_body = {"chat_template_kwargs": {"enable_thinking": False}}
    (answer,) = ask(server, dialect="qwen3", extra_body=extra_body)
    assert isinstance(answer, Generation) and answer.answer == "[2] > [1]"
    (answer,) = ask(server, dialect="qwen3")
    assert isinstance(answer, Generation) and (answer.answer, answer.reasoning) == ("", "[2] > [1]")


def test_tokens_of_replies_that_could_not_be_used_are_counted(chat_server: Start) -> None:
    broken = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7}}
    (answer,) = ask(chat_server(play(Reply(broken), Reply(broken), OK)))
    assert isinstance(answer, Generation)
    assert (answer.usage.num_attempts, answer.usage.prompt_tokens, answer.context_tokens) == (3, 210, 15)
    (error,) = ask(chat_server(play(Reply(broken))), max_retries=1)
    assert isinstance(error, ChatError) and error.usage == Usage(
        num_attempts=2, prompt_tokens=200, completion_tokens=14
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 600},
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            (1000, 100, 600, 40, (400 * 2 + 600 * 1 + 100 * 8) / 1e6),
        ),
        (
            {"input_tokens": 10, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}},
            (10, 5, 0, 2, (10 * 2 + 5 * 8) / 1e6),
        ),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, (0, 0, 0, 0, 0.0)),
        ({"prompt_tokens": 10**400, "completion_tokens": 5}, (0, 5, 0, 0, 40 / 1e6)),
        ("free", (0, 0, 0, 0, 0.0)),
        (None, (0, 0, 0, 0, 0.0)),
    ],
)
def test_usage_and_cost(given: object, expected: Sequence[float]) -> None:
    usage = read_usage(given, PricesSection(prompt=2, cached_prompt=1, completion=8))
    found = (
        usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens, usage.cost
    )  # fmt: skip
    assert found == pytest.approx(expected)


def test_a_model_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.name: missing"):
        Endpoint(ModelSection())


@pytest.mark.parametrize("key", ["schlüssel", "sk\nsecret", "two words"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="MY_KEY: expected a key of printable ASCII") as caught:
        Endpoint(ModelSection(name="m", api_key_env="MY_KEY"))
    assert key not in str(caught.value)


def test_a_line_feed_after_the_key_is_left_out(chat_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret\n")
    server = chat_server(play(OK))
    ask(server, api_key_env="MY_KEY")
    assert server.seen[0].headers["authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("url", ["http://[::1", "127.0.0.1:8000", "ftp://x/v1", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.base_url: expected an address such as"):
        Endpoint(ModelSection(name="m", base_url=url))


@pytest.mark.parametrize("body", [{"x": float("inf")}, {"x": {1, 2}}])
def test_an_extra_body_that_is_no_json_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected values that JSON has"):
        ModelSection(name="m", extra_body=body)


def test_a_budget_of_money_needs_prices() -> None:
    with pytest.raises(ConfigError, match=r"max_cost: needs model\.prices"):
        Endpoint(ModelSection.model_validate({"name": "m", "budget": {"max_cost": 1.0}}))
