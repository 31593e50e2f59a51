"""A language model behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, hosted), on the `openai` package.

    async with Endpoint(ModelSection(name="Qwen3-8B", base_url="http://127.0.0.1:8000/v1", dialect="qwen3")) as model:
        generation = await model.generate([Message(role="user", content="Who wrote Peer Gynt?")])

What fails in passing is sent again, after the time that the server asks for; what no repetition mends is raised at once. The
text of an error never becomes an answer, and neither does half an answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import cycle
from types import TracebackType
from typing import Any, Self

from agentir.chat.connection import SPARE_FILES, allow_open_files, checked_url, read_key
from agentir.chat.dialects.dialect import BadReplyError, Dialect
from agentir.chat.dialects.names import make_dialect
from agentir.chat.model import AUTO, NONE, Generation, ToolSchema
from agentir.chat.pace import Pace
from agentir.chat.settings import ModelSection
from agentir.chat.usage import read_usage
from agentir.errors import BudgetError, ChatError, ConfigError, ContextOverflowError, MissingExtraError
from agentir.jsonl import loads
from agentir.records import Message, Usage

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds before the first repetition, doubled for each next one, and the most that is waited unasked."""
LONGEST_ASKED_WAIT = 600.0
"""A server that asks for a longer pause than this is taken for one that refuses."""
REQUESTS_A_CLIENT = 32
"""A client goes through all of its connections twice a call, so several of them take less time than one with hundreds."""
CHARS_PER_TOKEN, ASSUMED_TOKENS = 4, 1000
"""For the tokens a minute that a request is booked with before its reply tells: what is sent, and an answer."""
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|(?:context|sequence)[ _](?:length|window|size|limit)|"
    r"prompt is too long|input is too long|too many (?:input )?tokens|maximum (?:input|prompt|model) length",
    re.IGNORECASE,
)
_MAX_SHOWN = 300


class _PassingError(Exception):
    """A fault that another try may mend; `wait` is how long the server asks to wait, `usage` what the try took."""

    def __init__(self, kind: str, message: str, wait: float | None = None, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.wait = wait
        self.usage = usage or Usage()


class Endpoint:
    """A chat model on a server; use as an async context manager, from one event loop.

    Args:
        settings: server, model, sampling, limits and budget.
        dialect: how it is spoken to; default: the one that the settings name.
        spent: what earlier starts of the same run took, counted against the budget.

    Attributes:
        usage: what was taken since this object was made; also of replies that could not be used.
        retries: repetitions by what had failed.
        num_in_flight: requests that wait for a reply now.

    Raises:
        ConfigError: no model is named, or a setting is not fit for a request.
        MissingExtraError: the package `openai` is not installed.
    """

    def __init__(self, settings: ModelSection, dialect: Dialect | None = None, spent: Usage | None = None) -> None:
        try:
            import httpx2
            import openai
        except ModuleNotFoundError:
            raise MissingExtraError("openai", "synth") from None
        if not settings.name:
            raise ConfigError("model.name: missing; expected the model as its server calls it")
        prices = settings.prices
        if settings.budget.max_cost is not None and not (prices.prompt or prices.cached_prompt or prices.completion):
            raise ConfigError(
                "model.budget.max_cost: needs model.prices; all prices are 0, so that nothing would ever cost"
            )
        self.settings = settings
        self.dialect = dialect or make_dialect(settings.dialect, settings.think_blocks, lets_think(settings.extra_body))
        self.usage = Usage()
        self.retries: Counter[str] = Counter()
        self.num_in_flight = 0
        self._spent = spent or Usage()
        self._num_started = 0
        self._pace = Pace(settings.requests_per_minute, settings.tokens_per_minute)
        self._places = asyncio.Semaphore(settings.concurrency)
        self._openai = openai
        self._reply_type = httpx2.Response
        context, key = httpx2.create_ssl_context(), read_key(settings.api_key_env)
        allow_open_files(settings.concurrency + SPARE_FILES)
        self._clients = [
            openai.AsyncOpenAI(
                base_url=checked_url(settings.base_url),
                api_key=key,
                max_retries=0,
                timeout=settings.deadline,
                http_client=openai.DefaultAsyncHttpxClient(
                    # Connections as many as there are requests: the endpoint's own limit decides.
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                    timeout=settings.deadline,
                    follow_redirects=True,
                    verify=context,
                ),
            )
            for _ in range(-(-settings.concurrency // REQUESTS_A_CLIENT))
        ]
        self._turns = cycle(self._clients)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.settings.name

    def status(self) -> str:
        """What was done and taken so far, for a progress bar."""
        parts = [f"{self.num_in_flight} in flight", f"{self.usage.total_tokens:,} tokens"]
        if self.usage.cost:
            parts.append(f"cost {self.usage.cost:.2f}")
        return ", ".join([*parts, *(f"{count} x {kind}" for kind, count in self.retries.items())])

    async def generate(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        tool_choice: str = AUTO,
        schema: dict[str, Any] | None = None,
    ) -> Generation:
        """See `agentir.chat.model.ChatModel.generate`."""
        body = self._body(messages, tools, tool_choice, schema)
        self._check_budget()
        self._num_started += 1
        lost, fault = Usage(), None
        for attempt in range(self.settings.max_retries + 1):
            if fault is not None:
                await self._wait(fault, attempt)
                self._check_budget(other_calls=False)
            try:
                generation = await self._attempt(body)
            except _PassingError as error:
                fault = error
                lost += replace(fault.usage, num_attempts=1)
            except ChatError as error:
                error.usage = lost + Usage(num_attempts=1)
                raise
            else:
                self.usage += Usage(num_calls=1)
                usage = lost + generation.usage + Usage(num_calls=1, num_attempts=1)
                return replace(generation, usage=usage, context_tokens=generation.usage.total_tokens)
        assert fault is not None
        times = f"{attempt + 1} times" if attempt else "once"
        failure = ChatError(fault.kind, f"{self.name}: {fault} (tried {times})")
        failure.usage = lost
        raise failure from fault

    def _check_budget(self, other_calls: bool = True) -> None:
        """Refuses to go on where the budget is used up.

        Raises:
            BudgetError: it is.
        """
        budget, spent = self.settings.budget, self._spent + self.usage
        calls = self._spent.num_calls + self._num_started
        for name, limit, used in (
            ("calls", budget.max_calls if other_calls else None, calls),
            ("tokens", budget.max_tokens, spent.total_tokens),
            ("cost", budget.max_cost, spent.cost),
        ):
            if limit is not None and used >= limit:
                raise BudgetError(f"budget used up: {used:g} of max_{name} {limit:g}")

    def _body(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], tool_choice: str, schema: Any
    ) -> dict[str, Any]:
        """The request as it is sent."""
        settings = self.settings
        body: dict[str, Any] = {"model": settings.name, **self.dialect.request(messages, tools)}
        for name, value in (("temperature", settings.temperature), ("top_p", settings.top_p)):
            if value is not None:
                body[name] = value
        if tool_choice != AUTO and "tools" in body:
            named: dict[str, Any] = {"type": "function", "name": tool_choice}
            if self.dialect.api == "chat":
                named = {"type": "function", "function": {"name": tool_choice}}
            body["tool_choice"] = NONE if tool_choice == NONE else named
        if self.dialect.api == "responses":
            limit = "max_output_tokens"
            if schema is not None:
                body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
        else:
            limit = settings.max_tokens_name
            if schema is not None:
                wrapped = {"name": "answer", "schema": schema, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": wrapped}
        if settings.max_tokens is not None:
            body[limit] = settings.max_tokens
        return body | settings.extra_body

    async def _wait(self, fault: _PassingError, attempt: int) -> None:
        self.retries[fault.kind] += 1
        backoff = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.5, 1.5)
        if fault.wait is not None and fault.kind == "rate_limit":
            self._pace.pause(fault.wait)  # the server speaks for all requests, not for this one only
        await asyncio.sleep(max(backoff, fault.wait or 0.0))

    async def _attempt(self, body: dict[str, Any]) -> Generation:
        openai = self._openai
        path = "/responses" if self.dialect.api == "responses" else "/chat/completions"
        async with self._places:
            estimate = self._estimate(body)
            await self._pace.wait(estimate)
            self.num_in_flight += 1
            self.usage += Usage(num_attempts=1)
            began = time.perf_counter()
            try:
                async with asyncio.timeout(self.settings.deadline):
                    # The client's typed methods walk through every message again, half of a call's processor time.
                    answer = await next(self._turns).post(path, cast_to=self._reply_type, body=body)
            except (TimeoutError, openai.APITimeoutError):
                raise _PassingError("timeout", f"no reply within {self.settings.deadline:g} s") from None
            except openai.APIStatusError as error:
                raise self._status_fault(error) from None
            except openai.APIConnectionError as error:
                where = self._clients[0].base_url
                raise _PassingError("connection", f"no connection to {where}: {error.__cause__ or error}") from None
            finally:
                self.num_in_flight -= 1
        return self._read(answer.content, time.perf_counter() - began, estimate)

    def _estimate(self, body: dict[str, Any]) -> int:
        """About how many tokens a request takes; only needed, and only computed, under a limit of tokens a minute."""
        if self.settings.tokens_per_minute is None:
            return 0
        return len(json.dumps(body)) // CHARS_PER_TOKEN + (self.settings.max_tokens or ASSUMED_TOKENS)

    def _read(self, content: bytes, latency: float, estimate: int) -> Generation:
        """The generation in a reply's body."""
        usage = Usage()
        try:
            reply = loads(content)
            if not isinstance(reply, dict):
                raise BadReplyError(f"expected a JSON object, found {type(reply).__name__}")
            usage = read_usage(reply.get("usage"), self.settings.prices)
            self.usage += usage
            self._pace.charge(usage.total_tokens - estimate)
            if fault := _told_fault(reply):
                raise BadReplyError(f"the server reported an error: {fault}")
            generation = self.dialect.read(reply)
        except (ValueError, RecursionError) as error:
            raise _PassingError("bad_reply", f"cannot use the reply: {_short(error)}", usage=usage) from None
        return replace(generation, usage=usage, latency=round(latency, 3))

    def _status_fault(self, error: Any) -> Exception:
        """What a status of 400 and above means: a fault to raise."""
        status, text = int(error.status_code), _short(error.message)
        asked = asked_wait(error.response.headers)
        if status == 402 or error.code == "insufficient_quota":
            return BudgetError(f"the server says that the account is empty: status {status}: {text}")
        if status in RETRIED_STATUS or (status >= 500 and status != 501):
            kind = "rate_limit" if status == 429 else "timeout" if status == 408 else "server_error"
            if asked is not None and asked > LONGEST_ASKED_WAIT:
                return ChatError(kind, f"{self.name}: {text}; the server asks to wait {asked:g} s: run again then")
            return _PassingError(kind, f"status {status}: {text}", asked)
        if status in (400, 413, 422) and _OVERFLOW.search(f"{error.code} {error.message}"):
            return ContextOverflowError(f"{self.name}: {text}")
        key = f" (the key is read from {self.settings.api_key_env})" if status in (401, 403) else ""
        return ChatError("refused", f"{self.name}: status {status}: {text}{key}")

    async def aclose(self) -> None:
        """Closes the connections."""
        for client in self._clients:
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def lets_think(extra_body: Mapping[str, Any]) -> bool:
    """Whether requests let the model think: not so where vLLM's or z.ai's switch is off."""
    template, thinking = extra_body.get("chat_template_kwargs"), extra_body.get("thinking")
    off = isinstance(template, Mapping) and template.get("enable_thinking") is False
    return not off and not (isinstance(thinking, Mapping) and thinking.get("type") == "disabled")


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: `retry-after-ms`, or `Retry-After` as a number or a date (RFC 9110)."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(float(milliseconds) / 1000, 0.0)
        if not (value := headers.get("retry-after")):
            return None
        if re.fullmatch(r"\d+(?:\.\d+)?", value.strip()):
            return float(value)
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _told_fault(reply: Mapping[str, Any]) -> str:
    """The error that a reply of status 200 reports, empty where it reports none."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    told = reply.get("error") or choice.get("error")
    if told or choice.get("finish_reason") in ("error", "abort"):
        return _short(told or choice.get("finish_reason"))
    return ""


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
