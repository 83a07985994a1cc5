"""The helper process of the TCP test: ``python -m llmgw_agent.hardware.bandwidth.tcp_helper OPTIONS_AS_JSON``.

A process of its own, because moving data at line rate takes a core, which the agent's loop needs.

The server prints ``{"port": N}``, takes as many connections as it was told to, each begun with the token, and prints the bytes
received and the seconds from the first to the last. The client prints the same of what it sent.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
import threading
import time
from typing import Any

_CHUNK = 1 << 20
_WAIT = 30.0


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Totals:
    """Bytes and times over all streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0
        self.first: float | None = None
        self.last = 0.0

    def add(self, count: int, begun: float, ended: float) -> None:
        with self._lock:
            self.bytes += count
            self.first = begun if self.first is None else min(self.first, begun)
            self.last = max(self.last, ended)

    def say(self) -> None:
        seconds = 0.0 if self.first is None else self.last - self.first
        _say({"bytes": self.bytes, "seconds": seconds})


def serve(options: dict[str, Any]) -> int:
    token = options["token"].encode()
    family = socket.AF_INET6 if ":" in options["host"] else socket.AF_INET
    with socket.create_server((options["host"], options["port"]), family=family, backlog=64) as listener:
        _say({"port": listener.getsockname()[1]})
        totals = Totals()
        threads: list[threading.Thread] = []
        end = time.monotonic() + _WAIT
        while len(threads) < options["streams"]:
            listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                stream, _ = listener.accept()
            except TimeoutError:
                _say({"error": f"{len(threads)} of {options['streams']} connections came within {_WAIT:.0f} s"})
                return 1
            stream.settimeout(_WAIT)
            if not _welcome(stream, token):
                stream.close()
                continue
            thread = threading.Thread(target=_receive, args=(stream, totals), daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join()
    totals.say()
    return 0


def _welcome(stream: socket.socket, token: bytes) -> bool:
    got = b""
    try:
        while len(got) < len(token):
            part = stream.recv(len(token) - len(got))
            if not part:
                return False
            got += part
        if not hmac.compare_digest(got, token):
            return False
        stream.sendall(b"!")
    except OSError:
        return False
    return True


def _receive(stream: socket.socket, totals: Totals) -> None:
    buffer = bytearray(_CHUNK)
    count, begun, ended = 0, None, time.monotonic()
    with stream:
        while True:
            try:
                got = stream.recv_into(buffer)
            except OSError:
                break
            ended = time.monotonic()
            begun = begun or ended
            if not got:
                break
            count += got
    totals.add(count, begun or ended, ended)


def run(options: dict[str, Any]) -> int:
    totals = Totals()
    streams = []
    try:
        for _ in range(options["streams"]):
            stream = socket.create_connection((options["host"], options["port"]), timeout=options["connect"])
            streams.append(stream)
            stream.sendall(options["token"].encode())
            if stream.recv(1) != b"!":
                raise ConnectionRefusedError("the server closed the connection: it serves another test")
    except OSError as error:
        _say({"error": str(error)})
        return 1
    threads = [threading.Thread(target=_send, args=(stream, options["seconds"], totals), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals.say()
    return 0


def _send(stream: socket.socket, seconds: float, totals: Totals) -> None:
    data = memoryview(bytes(_CHUNK))
    count, begun = 0, time.monotonic()
    stream.settimeout(_WAIT)
    with stream:
        try:
            while time.monotonic() - begun < seconds:
                count += stream.send(data)
            # Everything has arrived when the other side closes too.
            stream.shutdown(socket.SHUT_WR)
            stream.recv(1)
        except OSError:
            pass
    totals.add(count, begun, time.monotonic())


def main(argv: list[str]) -> int:
    options = json.loads(argv[1])
    return serve(options) if options["role"] == "server" else run(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
