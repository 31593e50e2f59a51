"""What a connection to a server needs: its address, the key, and enough open files."""

from __future__ import annotations

import contextlib
import os
import resource

from agentir.errors import ConfigError

SPARE_FILES = 256
"""Files and connections that a program has open besides those to the model."""
_NO_KEY = "none"
_ADDRESS = "an address such as http://127.0.0.1:8000/v1"


def read_key(name: str) -> str:
    """The key in an environment variable, a placeholder where there is none.

    Raises:
        ConfigError: it cannot be sent; the text does not show it.
    """
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"{name}: expected a key of printable ASCII characters without spaces, found others")
    return key or _NO_KEY


def checked_url(url: str | None) -> str | None:
    """A server's address, None for the client's default."""
    import httpx2

    given = url or os.environ.get("OPENAI_BASE_URL")
    if given is None:
        return None
    try:
        parts = httpx2.URL(given)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ConfigError(
            f"model.base_url: expected an address such as http://127.0.0.1:8000/v1, found {given!r}: {error}"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigError(f"model.base_url: expected {_ADDRESS}, found {given!r}")
    return url


def allow_open_files(num: int) -> None:
    """Raises this process's limit of open files, as far as the system lets it, so that each request has its connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num if hard == resource.RLIM_INFINITY else min(num, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
