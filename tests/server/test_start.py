"""Start and stop of the server program."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from served import ROOT, serve_command, serving

from agentir.errors import ConfigError
from agentir.server.app import base_url, bind


def start(index: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = serve_command(index, *options)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_an_absent_index_ends_the_start(transport: str, tmp_path: Path) -> None:
    ended = start(tmp_path / "nowhere", "--port", "0", "--transport", transport)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {tmp_path / 'nowhere'}: expected an index folder")


def test_a_taken_port_ends_the_start(index: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = start(index, "--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr == f"error: port: {port} on 127.0.0.1 is in use; name another one, or 0 for a free one\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "127.0.0.1.evil.example", ""])
def test_other_hosts_than_this_machine_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="serving beyond this machine needs authentication") as caught:
        bind(host, 0)
    assert f"found {host!r}" in str(caught.value)


def test_localhost_and_ipv6_are_this_machine() -> None:
    with bind("localhost", 0) as listener:
        assert base_url(listener).startswith("http://127.0.0.1:")
    if socket.has_dualstack_ipv6():
        with bind("::1", 0) as listener:
            assert base_url(listener).startswith("http://[::1]:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_http_server_cleanly(number: signal.Signals, index: Path, tmp_path: Path) -> None:
    with serving(index, tmp_path, "--max-k", "7") as server, httpx.Client(trust_env=False) as client:
        assert client.get(f"{server.url}/healthz").status_code == 200
        error = client.post(f"{server.url}/v1/search", json={"query": "x", "k": 8}).json()["error"]
        assert error["message"] == "k: expected a whole number from 1 to 7, found 8"
        server.process.send_signal(number)
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.stderr.read_text()


def test_a_signal_ends_the_stdio_server_cleanly(index: Path) -> None:
    with subprocess.Popen(
        serve_command(index, "--transport", "stdio"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_whatever_prints_goes_to_standard_error_once_stdout_is_claimed() -> None:
    code = """
import os
from agentir.server.stdio import claim_stdout
wire = claim_stdout()
print("from Python")
os.system("echo from a child")
wire.write(b"a protocol line\\n")
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ended.stdout == "a protocol line\n"
    assert set(ended.stderr.splitlines()) == {"from Python", "from a child"}
