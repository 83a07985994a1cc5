"""llama.cpp as it is published, in small: archives with a ``llama-server`` of a few lines of Python, and source packages."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

#: Answers what the agent and a client ask first. Its flags are llama-server's.
SERVER = f"""#!{sys.executable}
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

if "--version" in sys.argv:
    print("version: VERSION (abc)", file=sys.stderr)
    sys.exit(0)
if "--list-devices" in sys.argv:
    print("Available devices:")
    print("  CUDA0: NVIDIA Pretended (80000 MiB, 79000 MiB free)")
    sys.exit(0)
value = dict(zip(sys.argv, sys.argv[1:]))
name = value["--alias"]
answers = {{
    "/health": {{"status": "ok"}},
    "/slots": [{{"is_processing": False}}],
    "/v1/models": {{"object": "list", "data": [{{"id": name, "object": "model", "meta": {{"n_ctx_train": 64}}}}]}},
    "/v1/chat/completions": {{"choices": [{{"message": {{"role": "assistant", "content": "hi"}}}}]}},
}}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        known = answers.get(self.path)
        body = json.dumps(known).encode()
        self.send_response(200 if known is not None else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


ThreadingHTTPServer((value["--host"], int(value["--port"])), Handler).serve_forever()
"""

#: A project with the targets that are built; ``main`` stands for megabytes of C++.
CMAKE = """cmake_minimum_required(VERSION 3.14)
project(llama CXX)
if(NOT GGML_RPC OR GGML_NATIVE)
  message(FATAL_ERROR "this is built as it never should be")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-server server.cpp)
add_executable(ggml-rpc-server rpc.cpp)
add_executable(llama-bench never-needed.cpp)
"""
CPP = """#include <cstdio>
#include <cstring>
int main(int, char ** argv) {
    std::puts(std::strcmp(argv[1], "--version") ? "Available devices:\\n  (none)" : "version: 0.5.0-dev (build 0)");
    return 0;
}
"""


def server(version: str = "4321") -> str:
    return SERVER.replace("VERSION", version)


def source(*, package: str = "llama_cpp_python-0.3.36", cpp: str = CPP, cmake: str = CMAKE) -> dict[str, str]:
    """The files of a source package that carries llama.cpp's source, as llama-cpp-python's does."""
    inside = f"{package}/vendor/llama.cpp"
    return {
        f"{package}/CMakeLists.txt": "message(FATAL_ERROR wrong)",
        f"{inside}/CMakeLists.txt": cmake,
        f"{inside}/server.cpp": cpp,
        f"{inside}/rpc.cpp": "int main() { return 0; }\n",
        f"{inside}/never-needed.cpp": "#error not wanted\n",
    }


def make_archive(path: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> str:
    """Writes a .tar.gz with executable files, and symbolic links by name; returns its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content.encode()), 0o755
            tar.addfile(info, io.BytesIO(content.encode()))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return hashlib.sha256(path.read_bytes()).hexdigest()
