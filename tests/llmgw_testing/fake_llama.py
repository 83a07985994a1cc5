"""Programs that look like llama.cpp's to an agent and talk to each other as far as connections go.

``install(folder)`` writes executables ``llama-server`` and ``ggml-rpc-server`` there. The server connects to every address of
``--rpc`` at its start and fails without; like the real one it does not notice when they end while it is idle.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from llmgw_testing.fake_engine import FakeEngine

RPC_SERVER = "ggml-rpc-server"


def install(folder: Path) -> Path:
    """Returns the path of llama-server."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("llama-server", RPC_SERVER):
        program = folder / name
        command = f'exec {sys.executable} -m llmgw_testing.fake_llama {name} "$@"'
        program.write_text(f"#!/bin/sh\nPYTHONPATH={Path(__file__).parents[1]} {command}\n")
        program.chmod(0o755)
    return folder / "llama-server"


def lend(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=RPC_SERVER)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    held = []
    with socket.create_server((options.host, options.port)) as server:
        print(f"Starting RPC server at {options.host}:{options.port}", flush=True)
        while True:
            held.append(server.accept()[0])


def serve(argv: list[str]) -> int:
    if "--version" in argv:
        print("version: 1 (fake)")
        return 0
    parser = argparse.ArgumentParser(prog="llama-server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--rpc", default="")
    options, _ = parser.parse_known_args(argv)
    held = []
    for server in filter(None, options.rpc.split(",")):
        host, _, port = server.rpartition(":")
        try:
            held.append(socket.create_connection((host, int(port))))
        except OSError:
            print(f"ggml-rpc.cpp:547: Failed to connect to {server}", file=sys.stderr, flush=True)
            os.abort()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with FakeEngine(options.alias, api_key=os.environ.get("LLAMA_API_KEY")).start(options.port):
        print(f"fake llama-server with {len(held)} other nodes", flush=True)
        stopped.wait()
    return 0


if __name__ == "__main__":
    sys.exit({"llama-server": serve, RPC_SERVER: lend}[sys.argv[1]](sys.argv[2:]))
