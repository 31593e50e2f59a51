"""Whether what a checkpoint was trained to read is what it is about to be given."""

from __future__ import annotations

from dataclasses import fields

from agentir.embed.template import QueryTemplate
from agentir.errors import EncoderError

SHOWN = 24
"""Bytes shown before and after the first difference."""


def check_template(stored: QueryTemplate, wanted: QueryTemplate, where: str, *, retemplate: bool = False) -> None:
    """Refuses to give a checkpoint other texts than it was trained on, unless that is said to be meant.

    Args:
        stored: the template inside the checkpoint.
        wanted: the template that the configuration asks for.
        where: the checkpoint, for the error text.
        retemplate: the change is meant.

    Raises:
        EncoderError: the templates differ; the text shows the first differing place of each part, in bytes.
    """
    if retemplate or stored == wanted:
        return
    parts = [
        f"  {field.name}, {difference(getattr(stored, field.name), getattr(wanted, field.name))}"
        for field in fields(QueryTemplate)
        if getattr(stored, field.name) != getattr(wanted, field.name)
    ]
    raise EncoderError(
        f"{where}: was trained with another template than is asked for:\n" + "\n".join(parts) + "\n"
        "ask for the stored one, or say that the change is meant with retemplate = true"
    )


def difference(stored: str, wanted: str) -> str:
    """Where two texts first differ, and what stands there, as UTF-8 bytes."""
    before, after = stored.encode(), wanted.encode()
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    return f"byte {at}: stored {_around(before, at)}, asked for {_around(after, at)}"


def _around(text: bytes, at: int) -> str:
    """The bytes at a place, with dots where more is left out."""
    start, end = max(0, at - SHOWN), at + SHOWN
    return f"{'...' if start else ''}{text[start:end]!r}{'...' if end < len(text) else ''}"
