"""What every HTTP request passes first: host and origin checks, a body limit, and an end when the client is gone.

The checks keep web pages that a user happens to visit from reaching a server on the user's own machine, be it directly or
by a name that they make resolve to 127.0.0.1.
"""

from __future__ import annotations

import re

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentir.server.service import error_body

MAX_BODY_BYTES = 1 << 20
_LOOPBACK = r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?"
_HOST = re.compile(_LOOPBACK, re.IGNORECASE)
_ORIGIN = re.compile(f"https?://{_LOOPBACK}", re.IGNORECASE)


class Guard:
    """ASGI middleware that lets in requests from this machine, with their whole body, while their client listens."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that may come in, and answers one that may not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (refusal := _refusal(Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                text = f"body: expected at most {MAX_BODY_BYTES} bytes"
                await JSONResponse(error_body("too_large", text, "body"), 413)(scope, receive, send)
                return
        await self._run(scope, bytes(body), receive, send)

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Runs the application, and cancels it when the client goes away."""
        unread = [body]

        async def replay() -> Message:
            if not unread:
                await anyio.sleep_forever()
            return {"type": "http.request", "body": unread.pop(), "more_body": False}

        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await self.app(scope, replay, send)
            group.cancel_scope.cancel()


def _refusal(headers: Headers) -> JSONResponse | None:
    host, origin = headers.get("host", ""), headers.get("origin")
    if not _HOST.fullmatch(host):
        text = "the Host header names another machine; expected 127.0.0.1, localhost or [::1]"
        return JSONResponse(error_body("wrong_host", text), 421)
    if origin is not None and not _ORIGIN.fullmatch(origin):
        text = "requests of web pages from other origins are refused"
        return JSONResponse(error_body("wrong_origin", text), 403)
    return None
