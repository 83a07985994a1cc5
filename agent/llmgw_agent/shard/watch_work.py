"""Looks at an engine's work now and then, and asks for a token where only that tells. The shell of ``liveness.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from llmgw_agent.engines.client import EngineClient, EngineSilentError
from llmgw_agent.engines.probe import probe_request
from llmgw_agent.engines.pulse import Pulse, read_pulse
from llmgw_agent.shard.connections import open_connections
from llmgw_agent.shard.liveness import Judge, Look, Verdict
from llmgw_base.clock import Clock
from llmgw_proto.records import EndpointRecord

LOOK_EVERY = 10.0
#: A suspect is asked for a token with less patience, since it is asked again.
SUSPECT_ANSWER_SECONDS = 10.0


async def _connections_now(port: int) -> int:
    return await asyncio.to_thread(open_connections, port)


@dataclass(slots=True)
class Liveness:
    """One for each run of an engine; ``port`` is where it listens."""

    clock: Clock
    judge: Judge
    endpoint: EndpointRecord
    port: int
    hear: Callable[[float, Pulse | None], None] = lambda _, __: None
    """Told of each look: the time (monotonic) and what the engine said of its work."""
    connections: Callable[[int], Awaitable[int]] = _connections_now
    """How many are connected to a local port, now or a few seconds ago."""
    _next_look: float = 0.0
    _objection: str | None = None

    @property
    def every(self) -> float:
        return min(LOOK_EVERY, self.judge.longest_gap)

    async def objection(self, client: EngineClient) -> str | None:
        """Why an engine that is healthy by its own word is not; None if nothing is to be said against it."""
        now = self.clock.monotonic()
        if now < self._next_look:
            return self._objection
        self._next_look = now + self.every
        look = await self._look(client)
        verdict = self.judge.look(now, look)
        if verdict is Verdict.ASK and look.pulse is None and (count := await _connections_now(self.port)):
            # Somebody has come since the connections were counted.
            verdict = self.judge.look(now, replace(look, connections=count))
        if verdict is Verdict.ASK:
            verdict = await self._ask(client)
        elif verdict is Verdict.STALLED:
            self._objection = self._stalled()
        if verdict is Verdict.FINE:
            self._objection = None
        return self._objection

    async def _look(self, client: EngineClient) -> Look:
        try:
            pulse = await read_pulse(client)
        except EngineSilentError:
            self.hear(self.clock.monotonic(), None)
            return Look(None, silent=True, connections=await self.connections(self.port))
        self.hear(self.clock.monotonic(), pulse)
        if pulse is not None and pulse.requests > 0:
            return Look(pulse)
        return Look(pulse, connections=await self.connections(self.port))

    def _stalled(self) -> str:
        if self.judge.requests == 0:
            return f"the engine says that it is healthy, but its metrics do not come (for {self.judge.stall:g} s now)"
        requests = f"{self.judge.requests} requests run" if self.judge.requests != 1 else "a request runs"
        return f"the engine says that it is healthy, but makes no token although {requests} (for {self.judge.stall:g} s now)"

    async def _ask(self, client: EngineClient) -> Verdict:
        """A token, or whatever the model makes; one that makes nothing that can be asked for is taken at its word."""
        endpoint = self.endpoint
        asked = (probe_request(each, endpoint.served_name) for each in endpoint.capabilities)
        request = next((each for each in asked if each is not None), None)
        if request is None:
            return self.judge.asked(answered=True)
        limit = min(self.judge.stall, SUSPECT_ANSWER_SECONDS) if self.judge.stalled else self.judge.stall
        try:
            status = (await client.post(*request, limit)).status
        except EngineSilentError as error:
            self._objection = self._objection or f"the engine says that it is healthy, but {error}"
            return self.judge.asked(answered=False)
        if status >= 500:
            self._objection = self._objection or f"the engine says that it is healthy, but answers {status} to {request[0]}"
        return self.judge.asked(answered=status < 500)
