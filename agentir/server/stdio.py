"""MCP over standard input and output, for clients that start the server as a command."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import BinaryIO

import anyio
from mcp.server.stdio import stdio_server

from agentir.server.mcp_tools import build_mcp_server
from agentir.server.service import SearchService


def claim_stdout() -> BinaryIO:
    """Keeps standard output for protocol lines: whatever else writes to it from now on lands on standard error.

    To be called before a model is loaded, since libraries print warnings and progress bars while they do that.
    """
    sys.stdout.flush()
    wire = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return wire


def run(service: SearchService, wire: BinaryIO) -> None:
    """Serves until standard input ends, or SIGINT or SIGTERM.

    Args:
        service: what answers.
        wire: what `claim_stdout` gave.
    """
    # a thread blocks on reading standard input and would outlive a cancelled event loop; there is nothing to save
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    anyio.run(_serve, service, wire)


async def _serve(service: SearchService, wire: BinaryIO) -> None:
    server = build_mcp_server(service)
    stdout = anyio.wrap_file(io.TextIOWrapper(wire, encoding="utf-8"))
    async with stdio_server(stdout=stdout) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
