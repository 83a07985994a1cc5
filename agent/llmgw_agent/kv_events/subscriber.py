"""Receives one engine's KV-cache events over ZMQ. The decisions are in :mod:`.follow`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from .errors import KvEventError
from .events import Delivery
from .follow import Follower, ReplayIncompleteError
from .wire import Message, read_published, read_reply, replay_request

logger = logging.getLogger(__name__)


class Subscriber:
    """``endpoint`` is where the engine publishes, ``replay_endpoint`` where it answers for what was missed (None: nowhere).

    ``topic`` is the prefix to subscribe to. ``replay_seconds`` is how long a replay may stay silent before it is given up.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "", replay_seconds: float = 5.0
    ) -> None:
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic
        self._replay_seconds = replay_seconds
        self._malformed = 0

    async def run(self, deliver: Callable[[Delivery], None]) -> None:
        """Delivers batches in order, and what happened to them, until cancelled. Begins with what the engine still has.

        ``deliver`` is called in the event loop and must not block; the engine drops events for a subscriber that lags. An
        engine that is not there yet, or gone, is waited for. Raises zmq.ZMQError when an endpoint cannot be understood.
        """
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.rcvhwm = 100_000  # what engines keep for a subscriber
            socket.subscribe(self._topic)
            connection = socket.get_monitor_socket(zmq.Event.CONNECTED | zmq.Event.DISCONNECTED)
            try:
                socket.connect(self._endpoint)
                follower = Follower(deliver, self._replay_from(context, self._replay_endpoint))
                await follower.catch_up()
                await self._receive(socket, connection, follower)
            finally:
                socket.disable_monitor()
                connection.close(linger=0)

    async def _receive(self, socket: zmq.asyncio.Socket, connection: zmq.asyncio.Socket, follower: Follower) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(connection, zmq.POLLIN)
        broken = False
        while True:
            ready = dict(await poller.poll())
            if connection in ready:
                event = parse_monitor_message(await connection.recv_multipart())["event"]
                if event == zmq.Event.DISCONNECTED:
                    broken = True
                elif broken:
                    # Whoever answers there now may be another process, and its numbers need not show that.
                    broken = False
                    await follower.catch_up()
            elif socket in ready:
                try:
                    message = read_published(await socket.recv_multipart())
                except KvEventError as error:
                    self._report(error)
                else:
                    await follower.published(message)

    def _replay_from(
        self, context: zmq.asyncio.Context, endpoint: str | None
    ) -> Callable[[int], AsyncGenerator[Message, None]] | None:
        if endpoint is None:
            return None

        async def replay(start: int) -> AsyncGenerator[Message, None]:
            # A socket for each replay: late replies to one that was given up must not be taken for the next one's.
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.connect(endpoint)
                try:
                    async with asyncio.timeout(self._replay_seconds):
                        await socket.send_multipart(replay_request(start))
                    while True:
                        async with asyncio.timeout(self._replay_seconds):
                            frames = await socket.recv_multipart()
                        try:
                            message = read_reply(frames)
                        except KvEventError as error:
                            self._report(error)
                            continue
                        if message is None:
                            return
                        yield message
                except TimeoutError:
                    raise ReplayIncompleteError(f"{endpoint} is silent") from None

        return replay

    def _report(self, error: KvEventError) -> None:
        self._malformed += 1
        if self._malformed & (self._malformed - 1) == 0:  # the 1st, 2nd, 4th, 8th...: a flood is one line now and then
            fields = {"endpoint": self._endpoint, "reason": str(error), "count": self._malformed}
            logger.warning("KV event message left out", extra={"fields": fields})
