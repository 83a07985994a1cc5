"""Tiny wheels made on the spot, among them a vLLM that is only a name and a few answers."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: An engine that answers what the agent and a client ask first, from the standard library alone.
SERVER = """
import argparse, json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for flag in ("--model", "--served-model-name", "--host", "--port", "--max-num-seqs", "--tensor-parallel-size"):
    parser.add_argument(flag)
for flag in ("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"):
    parser.add_argument(flag, action="store_true")
options = parser.parse_args()
open_paths = ("/health", "/metrics")
card = {"id": options.served_model_name, "object": "model", "max_model_len": 64}
answers = {
    "/health": "",
    "/metrics": 'vllm:num_requests_running{engine="0"} 0.0\\nvllm:num_requests_waiting{engine="0"} 0.0\\n',
    "/v1/models": json.dumps({"object": "list", "data": [card]}),
    "/v1/chat/completions": json.dumps({"choices": [{"message": {"role": "assistant", "content": "hi"}}]}),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        allowed = self.path in open_paths or self.headers.get("authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        status = 200 if allowed and self.path in answers else 404 if allowed else 401
        body = answers.get(self.path, "") if status == 200 else ""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, *_):
        pass


ThreadingHTTPServer((options.host, int(options.port)), Handler).serve_forever()
"""


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()) -> Path:
    """``files``: content by path inside the wheel. An older wheel of the same name and version is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(content)},{len(content.encode())}" for path, content in whole.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, content in whole.items():
            archive.writestr(name_inside, content)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


def fake_vllm(folder: Path, version: str, *, code: str = "", requires: tuple[str, ...] = ()) -> Path:
    """A wheel ``vllm`` whose package runs ``code`` when it is imported."""
    files = {
        "vllm/__init__.py": code,
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/api_server.py": SERVER,
    }
    return make_wheel(folder, "vllm", version, files, requires)


def _digest(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
