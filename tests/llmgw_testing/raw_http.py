"""HTTP over a bare socket: requests exactly as the test writes them, answers exactly as they came.

`RawClient` never repairs anything: what is malformed in an answer fails the test that reads it.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

LIMIT = 30.0


@dataclass
class Answer:
    """One response; `raw` is everything as it came, `body` is without chunk framing, `chunks` the chunks if there were any."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    raw: bytes
    chunks: list[bytes]

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"header {name} came {len(values)} times: {values}"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The OpenAI-shaped error object; fails when the body is anything else."""
        value = self.json()
        assert set(value) == {"error"}, value
        error = value["error"]
        assert isinstance(error, dict)
        assert isinstance(error["message"], str), error
        assert error["message"], error
        assert isinstance(error["type"], str), error
        assert {"param", "code"} <= set(error), error
        return error

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [part[6:].decode() for part in self.body.split(b"\n\n") if part.startswith(b"data: ")]


@dataclass
class Streamed:
    """A response that may have been torn off: what came, and whether it ended as its framing says."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]


class ClosedEarlyError(Exception):
    """The peer closed before the answer was whole; `got` is what came."""

    def __init__(self, got: bytes) -> None:
        super().__init__(f"the peer closed after {len(got)} bytes: {got[-200:]!r}")
        self.got = got


class RawClient:
    """One client connection. `receive_buffer` (bytes) makes it a reader with a tiny window."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", limit: float = LIMIT, receive_buffer: int | None = None) -> None:
        self.limit = limit
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(limit)
        try:
            self.sock.connect((host, port))
        except OSError:
            self.sock.close()
            raise
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Closes with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_tolerant(self, data: bytes) -> bool:
        """Sends; False when the peer closed its side before all was sent, which it may."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> bytes:
        """What comes next, at least one byte; b"" at the end (FIN or RST)."""
        if self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        try:
            return self.sock.recv(65536)
        except ConnectionResetError:
            return b""

    def receive_until(self, mark: bytes) -> bytes:
        """Everything up to and with the mark."""
        while (end := self._buffer.find(mark)) < 0:
            self._fill()
        data = bytes(self._buffer[: end + len(mark)])
        del self._buffer[: len(data)]
        return data

    def receive_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def receive_to_end(self) -> bytes:
        """Everything until the peer closes; TimeoutError when it does not within the limit."""
        pieces = []
        end = time.monotonic() + self.limit
        while data := self.receive():
            pieces.append(data)
            if time.monotonic() > end:
                raise TimeoutError(f"the peer did not close within {self.limit} s")
        return b"".join(pieces)

    def _fill(self) -> None:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise ClosedEarlyError(bytes(self._buffer))
        self._buffer += data

    def answer(self, *, to_head: bool = False) -> Answer:
        """Reads one response (after any 1xx). `to_head`: the request was HEAD, so no body follows."""
        while True:
            head = self.receive_until(b"\r\n\r\n")
            status, headers = parse_answer_head(head)
            if status >= 200 or status == 101:
                break
        found = {name.lower(): value for name, value in headers}
        body, framed, chunks = b"", b"", list[bytes]()
        if to_head or status in (101, 204, 304):
            pass
        elif "chunked" in found.get("transfer-encoding", ""):
            assert "content-length" not in found, headers
            framed, chunks = self._chunked()
            body = b"".join(chunks)
        elif "content-length" in found:
            body = framed = self.receive_exactly(int(found["content-length"]))
        else:
            body = framed = self.receive_to_end()
        return Answer(status, headers, body, head + framed, chunks)

    def stream_to_end(self) -> Streamed:
        """Reads a response however it ends: whole, or torn off after some bytes (`complete` tells)."""
        head = self.receive_until(b"\r\n\r\n")
        status, headers = parse_answer_head(head)
        found = {name.lower(): value for name, value in headers}
        body = bytearray()
        try:
            if found.get("transfer-encoding") == "chunked":
                while size := int(self.receive_until(b"\r\n").strip(), 16):
                    body += self.receive_exactly(size)
                    assert self.receive_exactly(2) == b"\r\n"
                assert self.receive_exactly(2) == b"\r\n"
            elif "content-length" in found:
                body += self.receive_exactly(int(found["content-length"]))
            else:
                body += self.receive_to_end()
        except ClosedEarlyError as error:
            if "content-length" in found:
                body += error.got
            return Streamed(status, headers, bytes(body), False)
        return Streamed(status, headers, bytes(body), True)

    def _chunked(self) -> tuple[bytes, list[bytes]]:
        framed, chunks = b"", list[bytes]()
        while True:
            line = self.receive_until(b"\r\n")
            size = int(line.strip(), 16)
            data = self.receive_exactly(size + 2)
            assert data.endswith(b"\r\n"), data[-10:]
            framed += line + data
            if size == 0:
                return framed, chunks
            chunks.append(data[:-2])

    def closed_by_peer(self) -> bool:
        """True when the peer has closed within the limit and nothing more came."""
        try:
            return self.receive() == b""
        except TimeoutError:
            return False


def parse_answer_head(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    lines = head[:-4].decode("latin-1").split("\r\n")
    version, status, *_ = lines[0].split(" ", 2)
    assert version in ("HTTP/1.1", "HTTP/1.0"), lines[0]
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        assert colon, f"not a header line: {line!r}"
        headers.append((name, value.strip()))
    return int(status), headers


def build(method: str, target: str, body: bytes | Any = None, *headers: str, key: str | None = None) -> bytes:
    """A well-formed request; a body that is not bytes becomes JSON."""
    lines = [f"{method} {target} HTTP/1.1", "Host: router.test"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines.append(f"Content-Length: {len(data)}")
        if not any(line.lower().startswith("content-type:") for line in headers):
            lines.append("Content-Type: application/json")
    lines += headers
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def ask(port: int, method: str, target: str, body: bytes | Any = None, *headers: str, key: str | None = None) -> Answer:
    """One request on its own connection."""
    with RawClient(port) as client:
        client.send(build(method, target, body, *headers, key=key))
        return client.answer(to_head=method == "HEAD")


def chat(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], **fields}


def ask_chat(port: int, model: str = "m", *, key: str | None = None, **fields: Any) -> Answer:
    return ask(port, "POST", "/v1/chat/completions", chat(model, **fields), key=key)


def metric(port: int, name: str, **labels: str) -> float:
    """The sum of all samples of a metric whose labels match; 0 when there is none. The metric itself must exist."""
    total = 0.0
    text = ask(port, "GET", "/metrics").body.decode()
    families = (name, name.removesuffix("_total"), name.removesuffix("_count"))
    assert any(f"# TYPE {family} " in text for family in families), f"no metric {name}"
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{wish}"' in series for key, wish in labels.items()):
            total += float(value)
    return total
