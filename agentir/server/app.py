"""One ASGI application with REST and, at /mcp, MCP over streamable HTTP; and its HTTP listener, on this machine only."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from agentir.errors import ConfigError
from agentir.server.guard import Guard
from agentir.server.mcp_tools import build_mcp_server
from agentir.server.rest import EXCEPTION_HANDLERS, rest_routes
from agentir.server.service import SearchService

ADDRESSES = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
"""The hosts that may be bound, and their addresses."""
SHUTDOWN_SECONDS = 5
"""How long running requests may take to end after a stop signal."""


def build_app(service: SearchService) -> Starlette:
    """The application; its lifespan must be run, as every ASGI server does."""
    # stateless: no session to lose or to keep; only POST: there is nothing that the server would push over a GET stream
    manager = StreamableHTTPSessionManager(build_mcp_server(service), json_response=True, stateless=True)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(
        routes=[*rest_routes(service), Route("/mcp", StreamableHTTPASGIApp(manager), methods=["POST"])],
        middleware=[Middleware(Guard)],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def bind(host: str, port: int) -> socket.socket:
    """Takes a port of this machine, port 0 a free one, without listening yet.

    Raises:
        ConfigError: the host is not a loopback name, or the port is taken or not permitted.
    """
    if host not in ADDRESSES:
        raise ConfigError(
            f"host: expected one of {', '.join(ADDRESSES)}, found {host!r}; serving beyond this machine needs "
            "authentication, which this version does not have"
        )
    # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named; without it each takes 40 ms
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESSES[host], port))
    except OSError as error:
        listener.close()
        raise _no_port(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Lets clients connect.

    Raises:
        ConfigError: another process began to listen on the port since it was bound.
    """
    try:
        listener.listen(128)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _no_port(host, port, error) from None


def _no_port(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port: {port} on {host} is in use; name another one, or 0 for a free one")
    return ConfigError(f"port: cannot listen on {port} of {host}: {error.strerror}")


def base_url(listener: socket.socket) -> str:
    """Where a bound listener is reached."""
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def run(app: Starlette, listener: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM, then lets running requests end."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn sends itself the signal again once it has shut down; with these handlers that is no second death
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    server.run(sockets=[listener])
