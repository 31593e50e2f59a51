"""A server that speaks as much of the Hugging Face hub's protocol as reading a data set takes, for files of a folder."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

COMMIT = "a" * 40


class HubServer(ThreadingHTTPServer):
    """Serves the data sets that lie in a folder as org/name; `downloads` are the files it was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.downloads: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def _answer(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        api = parts[0] == "api"
        repository, rest = "/".join(parts[api + 1 : api + 3]), parts[api + 3 :]
        root = self.server.folder / repository
        if parts[api] != "datasets" or not root.is_dir():
            self._send(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
        elif rest[:1] == ["resolve"]:
            self._file(root / "/".join(rest[2:]))
        elif rest[:1] == ["tree"]:
            self._tree(root, root / "/".join(rest[2:]))
        else:
            info = {"id": repository, "sha": COMMIT, "private": False, "tags": [], "siblings": []}
            self._send(json.dumps(info).encode())

    do_GET = do_HEAD = _answer  # noqa: N815 (the base class's names)

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._send(b"{}", 404, {"X-Error-Code": "EntryNotFound"})
            return
        if self.command == "GET":
            self.server.downloads.append(path.name)
        self._send(path.read_bytes(), headers={"ETag": f'"{_oid(path)}"', "X-Repo-Commit": COMMIT})

    def _tree(self, root: Path, folder: Path) -> None:
        if not folder.is_dir():
            self._send(b"{}", 404, {"X-Error-Code": "EntryNotFound"})
            return
        entries: list[dict[str, Any]] = []
        for path in sorted(folder.iterdir()):
            name = str(path.relative_to(root))
            if path.is_dir():
                entries.append({"type": "directory", "path": name, "oid": COMMIT})
            else:
                entries.append({"type": "file", "path": name, "oid": _oid(path), "size": path.stat().st_size})
        self._send(json.dumps(entries).encode())

    def _send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
