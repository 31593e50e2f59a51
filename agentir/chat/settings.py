"""How a program is told which model to ask, how fast, and at what price."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import field_validator

from agentir.chat.dialects.names import DialectName
from agentir.chat.transcripts import ThinkBlocks
from agentir.config import RUNTIME, Field, Section


class PricesSection(Section):
    """Prices of a million tokens, in any one currency; what is 0 costs nothing."""

    prompt: float = Field(0.0, json_schema_extra=RUNTIME, ge=0)
    """Of tokens read."""
    cached_prompt: float | None = Field(None, json_schema_extra=RUNTIME, ge=0)
    """Of tokens read from the server's cache; default: the price of tokens read."""
    completion: float = Field(0.0, json_schema_extra=RUNTIME, ge=0)
    """Of tokens written."""


class BudgetSection(Section):
    """What a run may spend in all, earlier starts included; when it is used up, the run stops and can be continued."""

    max_calls: int | None = Field(None, json_schema_extra=RUNTIME, ge=1)
    """Most calls of the model."""
    max_tokens: int | None = Field(None, json_schema_extra=RUNTIME, ge=1)
    """Most tokens, read and written; calls in flight may go a little beyond."""
    max_cost: float | None = Field(None, json_schema_extra=RUNTIME, gt=0)
    """Most money, in the currency of the prices; calls in flight may go a little beyond."""


class ModelSection(Section):
    """A language model behind an OpenAI-compatible server."""

    name: str = ""
    """The model, as the server calls it."""
    base_url: str | None = Field(None, json_schema_extra=RUNTIME)
    """Where the server is, such as http://127.0.0.1:8000/v1; default: OPENAI_BASE_URL, or OpenAI."""
    api_key_env: str = Field("OPENAI_API_KEY", json_schema_extra=RUNTIME)
    """The environment variable that holds the key; servers that need none are sent a placeholder."""
    dialect: DialectName = "generic"
    """How the model carries reasoning and tool calls: generic (tool_calls, any reasoning field), tongyi, gpt-oss (Responses),
    glm, qwen3, or json-text (tools described in the prompt, for models without tool calls)."""
    think_blocks: ThinkBlocks = "last"
    """Which of several thoughts in one message is the reasoning: the last (AgentIR's way), or all of them joined."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature; default: the server's."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus of the sampling; default: the server's."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of one answer, reasoning included; default: the server's. An answer that is cut is never used."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = Field("max_tokens", json_schema_extra=RUNTIME)
    """What the server calls that limit in chat completions; newer OpenAI models want max_completion_tokens."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Anything else that each request holds, such as {presence_penalty = 1.1, top_k = 20}."""

    @field_validator("extra_body")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected values that JSON has: {error}") from None
        return value

    deadline: float = Field(600.0, json_schema_extra=RUNTIME, gt=0)
    """Seconds that one request may take before it is given up and sent again."""
    max_retries: int = Field(5, json_schema_extra=RUNTIME, ge=0)
    """How often a request that failed in passing (429, 5xx, timeout, lost connection, broken reply) is sent again."""
    concurrency: int = Field(256, json_schema_extra=RUNTIME, ge=1)
    """Most requests in flight."""
    requests_per_minute: float | None = Field(None, json_schema_extra=RUNTIME, gt=0)
    """Most requests started a minute."""
    tokens_per_minute: float | None = Field(None, json_schema_extra=RUNTIME, gt=0)
    """Most tokens a minute, read and written."""
    prices: PricesSection = Field(default_factory=lambda: PricesSection.model_validate({}))
    """Prices of a million tokens, for the cost in reports and the budget."""
    budget: BudgetSection = Field(default_factory=lambda: BudgetSection.model_validate({}))
    """What may be spent in all."""
