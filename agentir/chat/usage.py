"""What a reply took, as its server tells it."""

from __future__ import annotations

from collections.abc import Mapping

from agentir.chat.settings import PricesSection
from agentir.records import Usage

MAX_TOKENS = 10**12
"""No call takes as many; a server that counts more counts wrongly."""


def read_usage(given: object, prices: PricesSection) -> Usage:
    """Tokens and cost of a reply of chat completions or responses; what the server does not tell is 0."""

    def number(source: object, *names: str) -> int:
        found = [source.get(name) for name in names] if isinstance(source, Mapping) else []
        return next((value for value in found if isinstance(value, int) and 0 < value < MAX_TOKENS), 0)

    def details(*names: str) -> object:
        return (
            next((given.get(name) for name in names if given.get(name)), None) if isinstance(given, Mapping) else None
        )

    prompt, completion = (
        number(given, "prompt_tokens", "input_tokens"),
        number(given, "completion_tokens", "output_tokens"),
    )
    cached = min(number(details("prompt_tokens_details", "input_tokens_details"), "cached_tokens"), prompt)
    price_cached = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
    cost = (prompt - cached) * prices.prompt + cached * price_cached + completion * prices.completion
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        reasoning_tokens=number(details("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
        cost=cost / 1e6,
    )
