"""An engine's KV-event publisher: PUB and replay ROUTER, in both framings, with gaps and restarts on demand."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio


class KvPublisher:
    """``framed_topic``: replies to replays carry the topic, as newer engines' do. Ports are chosen when first entered."""

    def __init__(self, *, framed_topic: bool = True, topic: str = "", ring: int = 10_000) -> None:
        self.endpoint = "tcp://127.0.0.1:*"
        self.replay_endpoint = "tcp://127.0.0.1:*"
        self.requests: list[int] = []
        self.silent = False  # replays are not answered
        self._framed_topic = framed_topic
        self._topic = topic.encode()
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=ring)
        self._seq = 0

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.linger = 0
        self._pub.bind(self.endpoint)
        self._router.bind(self.replay_endpoint)
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._task = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close()
        self._router.close()
        self._context.term()
        self._ring.clear()
        self._seq = 0

    async def publish(self, *events: Any, drop: bool = False) -> int:
        """Publishes a batch, or, with ``drop``, only remembers it, as when a subscriber lags; its sequence number."""
        seq, self._seq = self._seq, self._seq + 1
        payload = msgspec.msgpack.encode([time.time(), list(events), None])
        self._ring.append((seq, payload))
        if not drop:
            await self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])
        return seq

    async def send_raw(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def _answer(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            start = int.from_bytes(frames[-1], "big")
            self.requests.append(start)
            if self.silent:
                continue
            head = [frames[0], b"", *([self._topic] if self._framed_topic else [])]
            for seq, payload in list(self._ring):
                if seq >= start:
                    await self._router.send_multipart([*head, seq.to_bytes(8, "big"), payload])
            end = [frames[0], b"", *([b""] if self._framed_topic else [])]
            await self._router.send_multipart([*end, (-1).to_bytes(8, "big", signed=True), b""])
