"""A scriptable fake OpenAI engine on a real socket.

In a test:

    with FakeEngine("m") as engine:
        engine.script(stream(chat_events("m", ["Hi"])))   # the next generation request gets this, later ones the normal answer
        ...
        request = engine.wait_request()
        assert request.header("authorization") == "Bearer K"

As a program, for whoever supervises engines:

    python -m llmgw_testing.fake_engine --port N --model M [--api-key K] [--script NAME]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from llmgw_testing.fake_openai import Engine
from llmgw_testing.fake_wire import Connection, Host, Request, Script

T = TypeVar("T")
WAIT_SECONDS = 30.0
QUIET_PATHS = ("/health", "/metrics", "/v1/models", "/version")


class FakeEngine(Host):
    """Runs in its own thread with its own loop. Probes (`/health`, `/v1/models`, …) are answered by the normal engine
    and kept in `probes`; everything else is kept in `requests` and answered by the next queued script, else by `default`.
    What is not a well-formed request is answered with 400 and kept in `broken`, as is the traceback of a script that failed.

    `close_idle_after`: seconds after which an idle keep-alive connection is closed; None keeps it for ever.
    """

    def __init__(self, *models: str, api_key: str | None = None, tokens: int = 5, token_seconds: float = 0.0) -> None:
        self.engine = Engine(list(models), api_key=api_key, tokens=tokens, token_seconds=token_seconds)
        self.default: Script = self.engine.answer
        self.probe: Script = self.engine.answer
        self.requests: list[Request] = []
        self.probes: list[Request] = []
        self.broken: list[str] = []
        self.connections_opened = 0
        self.close_idle_after: float | None = None
        self.refuse_bodies: bytes | None = None
        self.port = 0
        self._scripts: deque[Script] = deque()
        self._changed = threading.Condition()
        self._open: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None

    # Life

    def start(self, port: int = 0) -> Self:
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()
        self._call(self._listen(port))
        return self

    def stop(self) -> None:
        """Closes the listening socket and every connection; the port refuses connections afterwards."""
        if self._thread is None:
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()
        self._thread = None

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _listen(self, port: int) -> None:
        self._server = await self._loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.reset()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)

    # What the test says and sees

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, *scripts: Script) -> None:
        """Queues scripts; each is used for one request, in order."""
        with self._changed:
            self._scripts.extend(scripts)

    def pending_scripts(self) -> int:
        with self._changed:
            return len(self._scripts)

    def reset_state(self) -> None:
        """Forgets requests, probes and queued scripts, so that one engine can serve many tests."""
        with self._changed:
            self._scripts.clear()
            self.requests.clear()
            self.probes.clear()
            self.broken.clear()
            self.default = self.engine.answer
            self.probe = self.engine.answer
            self.close_idle_after = None
        self.engine.healthy, self.engine.wedged = True, False

    def wait(self, condition: Callable[[], bool], what: str, limit: float = WAIT_SECONDS) -> None:
        """Waits until the condition holds (checked at each event of this engine and every 50 ms); fails with `what`."""
        end = time.monotonic() + limit
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                assert left > 0, f"not within {limit} s: {what}; {len(self.requests)} requests seen"
                self._changed.wait(min(left, 0.05))

    def wait_request(self, number: int = 1, limit: float = WAIT_SECONDS) -> Request:
        """The number-th request (counted from 1), as soon as it has come in wholly."""
        self.wait(lambda: len(self.requests) >= number, f"request number {number}", limit)
        return self.requests[number - 1]

    def wait_closed(self, request: Request, limit: float = WAIT_SECONDS) -> float:
        """Waits until the peer has closed that request's connection before its end; the monotonic time it was seen."""
        assert request.closed.wait(limit), f"the peer kept {request.method} {request.target} open for {limit} s"
        assert request.closed_at is not None
        return request.closed_at

    def open_connections(self) -> int:
        return len(self._open)

    def close_idle(self) -> None:
        """Closes all connections on which no request is running."""

        async def close() -> None:
            for connection in list(self._open):
                if connection.idle:
                    connection.close()

        self._call(close())

    # Host

    def opened(self, connection: Connection) -> int:
        with self._changed:
            self.connections_opened += 1
            self._open.add(connection)
            self._changed.notify_all()
            return self.connections_opened

    def closed(self, connection: Connection) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def arrived(self, request: Request) -> Script:
        with self._changed:
            if request.method in ("GET", "HEAD") and request.path in QUIET_PATHS:
                self.probes.append(request)
                script = self.probe
            else:
                self.requests.append(request)
                script = self._scripts.popleft() if self._scripts else self.default
            self._changed.notify_all()
            return script

    def went_wrong(self, what: str) -> None:
        with self._changed:
            self.broken.append(what)
            self._changed.notify_all()


if __name__ == "__main__":
    from llmgw_testing.fake_program import main

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
