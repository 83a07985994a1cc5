"""An engine that runs: from its first sign of life to ready, and whether it still answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from llmgw_agent.engines.base import Driver, Facts
from llmgw_agent.engines.client import EngineClient, EngineSilentError
from llmgw_agent.engines.probe import probe
from llmgw_agent.errors import AttemptError
from llmgw_agent.shard.watch_work import Liveness
from llmgw_base.clock import Clock
from llmgw_proto.records import AssignmentRecord

#: Three misses make a suspect: an engine that froze is one within 8 s, also when the agent is a little late.
HEALTH_EVERY, HEALTH_AFTER_MISS, HEALTH_TIMEOUT = 2.0, 0.3, 1.5
MISSES_TO_SUSPECT = 3
#: An engine that answers at once, but wrongly, may need a moment more; one that was silent for so long will not recover.
GENERATION_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answering:
    """What the probe found."""

    capabilities: list[str]
    facts: Facts


@dataclass(slots=True)
class Serving:
    """Questions to one engine. Knows no state machine: it calls back."""

    clock: Clock
    driver: Driver
    wish: AssignmentRecord
    client: EngineClient

    async def healthy(self, timeout: float = HEALTH_TIMEOUT) -> bool:
        try:
            answer = await self.client.get(self.driver.health_path(self.wish), timeout)
        except EngineSilentError:
            return False
        return answer.status == 200

    async def become_ready(self, limit: float, on_listening: Callable[[], None]) -> Answering:
        """Waits for the health endpoint and one real answer.

        Raises:
            AttemptError: not within ``limit`` seconds, or it is healthy and gives no answer.
        """
        deadline = self.clock.monotonic() + limit
        pause, last = 0.05, "it never opened its port"
        while self.clock.monotonic() < deadline:
            try:
                answer = await self.client.get(self.driver.health_path(self.wish), 5)
            except EngineSilentError:
                pass
            else:
                on_listening()
                if answer.status == 200:
                    return await self._first_answer()
                last = f"{self.driver.health_path(self.wish)} answered {answer.status}: {answer.excerpt}"
            await self.clock.sleep(pause)
            pause = min(1.0, pause * 1.2)
        raise AttemptError(
            f"the engine was not ready within {limit:g} s: {last}. Look at its log, or raise engines.start_seconds."
        )

    async def _first_answer(self) -> Answering:
        candidates = self.driver.capabilities(self.wish)
        deadline = self.clock.monotonic() + GENERATION_SECONDS
        while True:
            try:
                facts = await self.driver.facts(self.client, self.wish)
                found = await probe(self.client, facts.served_name, candidates, sure=self.wish.capabilities is not None)
                return Answering(found, facts)
            except EngineSilentError as error:
                if self.clock.monotonic() >= deadline:
                    raise AttemptError(f"the engine says that it is healthy, but {error}. Look at its log.") from error
                await self.clock.sleep(1)

    async def watch_health(
        self,
        hang: float,
        liveness: Liveness,
        on_suspect: Callable[[str], Awaitable[None]],
        on_healthy: Callable[[], None],
    ) -> None:
        """Asks for ever. Calls ``on_healthy`` after each good answer, ``on_suspect`` once when it no longer answers or gets on.

        Raises:
            AttemptError: it has been a suspect for ``hang`` seconds.
        """
        misses = 0
        suspect_since: float | None = None
        while True:
            await self.clock.sleep(min(HEALTH_EVERY, liveness.every) if misses == 0 else HEALTH_AFTER_MISS)
            misses = 0 if await self.healthy() else misses + 1
            stall = await liveness.objection(self.client) if misses == 0 else None
            if misses == 0 and stall is None:
                suspect_since = None
                on_healthy()
                continue
            if misses < MISSES_TO_SUSPECT and stall is None:
                continue
            if suspect_since is None:
                suspect_since = self.clock.monotonic()
                await on_suspect(f"{stall or 'the engine runs but does not answer'}; routers leave it out until it does")
            if self.clock.monotonic() - suspect_since >= hang:
                what = f"{stall}, and nothing changed" if stall else "the engine runs, but did not answer"
                raise AttemptError(f"{what} for {hang:g} s, so it is ended. Look at its log.")
