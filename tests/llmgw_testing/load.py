"""A light, steady load of chat requests in a thread, which counts what did not succeed."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from llmgw_testing.stack import chat


class Load:
    """One request after the other until stopped; ``failures`` holds status and body of each that was not 200."""

    def __init__(self, router_url: str, model: str, *, pause: float = 0.02, stream: bool = False) -> None:
        self._url = router_url
        self._model = model
        self._pause = pause
        self._stream = stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.done = 0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> int:
        """Returns how many requests succeeded."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a request hangs"
        return self.done

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            status, body = chat(self._url, self._model, stream=self._stream)
            if status == 200 and (not self._stream or b"[DONE]" in body):
                self.done += 1
            else:
                self.failures.append(f"{status} {body[:300]!r}")
