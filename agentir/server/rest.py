"""REST: POST /v1/search, GET /v1/documents/{docid}, GET /healthz.

Every error is `{"error": {"code", "field", "message"}}`; `field` is the argument at fault, or null.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentir.errors import AgentirError, RequestError
from agentir.server.service import BusyError, SearchService, describe_error, error_body

DOCUMENTS = "/v1/documents/"
_CODES = {404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}


class _AnyText(Convertor[str]):
    """Unlike starlette's `path` it also takes line feeds."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anytext", _AnyText())


def rest_routes(service: SearchService) -> list[Route]:
    """The routes of the REST interface."""

    async def search(request: Request) -> Response:
        return JSONResponse(await service.search(await _json_object(request)))

    async def document(request: Request) -> Response:
        return JSONResponse(await service.get_document({"docid": _docid(request)}))

    async def health(_: Request) -> Response:
        return JSONResponse(service.health())

    return [
        Route("/v1/search", search, methods=["POST"]),
        Route(DOCUMENTS + "{docid:anytext}", document, methods=["GET"]),
        Route("/healthz", health, methods=["GET"]),
    ]


async def _json_object(request: Request) -> dict[str, Any]:
    if request.scope["query_string"]:
        raise RequestError("body", "expected the arguments in the JSON body, found some in the URL")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, f"expected Content-Type: application/json, found {media_type or 'none'}")
    try:
        value = json.loads((await request.body()).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError("body", f"expected a JSON object: {text}", "invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("body", f"expected a JSON object, found a JSON {type(value).__name__}", "invalid_json")
    return value


def _docid(request: Request) -> str:
    """The docid from the bytes of the path: a server's own decoding would replace what is not UTF-8."""
    if request.scope["query_string"]:
        raise RequestError("docid", "expected it percent-encoded, found a ? in the URL")
    _, _, raw = request.scope["raw_path"].partition(DOCUMENTS.encode())
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError("docid", "expected percent-encoded UTF-8") from None


async def on_request_error(_: Request, error: Exception) -> Response:
    """400, or 404 where the document does not exist."""
    assert isinstance(error, RequestError)
    return JSONResponse(describe_error(error), 404 if error.code == "not_found" else 400)


async def on_busy(_: Request, error: Exception) -> Response:
    """503 with the time after which to ask again."""
    assert isinstance(error, BusyError)
    return JSONResponse(describe_error(error), 503, {"Retry-After": str(error.retry_after)})


async def on_agentir_error(_: Request, error: Exception) -> Response:
    """500 for faults of index or encoder, which the caller cannot mend."""
    assert isinstance(error, AgentirError)
    return JSONResponse(describe_error(error), 500)


async def on_http_error(_: Request, error: Exception) -> Response:
    """Unknown routes, wrong methods and media types."""
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "http_error")
    return JSONResponse(error_body(code, error.detail), error.status_code, error.headers)


async def on_failure(_: Request, error: Exception) -> Response:
    """500 without internals; the traceback goes to the log."""
    return JSONResponse(error_body("internal", "the server failed on this request; its log says why"), 500)


EXCEPTION_HANDLERS = {
    RequestError: on_request_error,
    BusyError: on_busy,
    AgentirError: on_agentir_error,
    HTTPException: on_http_error,
    Exception: on_failure,
}
