"""Who uses which GPU of this node: a GPU is used only after its last holder is proved gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from llmgw_agent.errors import AttemptError
from llmgw_agent.hardware.processes import ForeignProcess, in_words
from llmgw_base.clock import Clock

LOOK_SECONDS = 0.1
#: The driver may need a moment to see the end of a process; a process of somebody else will not go by itself.
USERS_WAIT, USERS_PAUSE = 15.0, 1.0

AskUsers: TypeAlias = Callable[[Sequence[str]], Awaitable[list[ForeignProcess]]]


async def _nobody(gpus: Sequence[str]) -> list[ForeignProcess]:
    return []


class Gpus:
    """GPUs by UUID. A holder gives them back when all of its processes are gone, not when it was asked to end.

    ``users``: who computes on some GPUs, whoever started them.
    """

    def __init__(self, clock: Clock, users: AskUsers = _nobody) -> None:
        self._clock, self._users = clock, users
        self._holders: dict[str, str] = {}

    def hold(self, shard: str, gpus: Sequence[str]) -> None:
        """For an engine that runs already: what is, is."""
        self._holders.update(dict.fromkeys(gpus, shard))

    async def take(self, shard: str, gpus: Sequence[str], tell: Callable[[str], None] = lambda _: None) -> None:
        """Waits until none of them is another shard's, then holds all of them at once, and makes sure that nobody is on them.

        ``tell`` hears who is waited for.

        Raises:
            AttemptError: somebody whom llmgw does not know uses them and does not go. Nothing is held then.
        """
        while others := sorted({holder for gpu in gpus if (holder := self._holders.get(gpu, shard)) != shard}):
            tell(f"waits until {', '.join(others)} has ended on its GPUs")
            await self._clock.sleep(LOOK_SECONDS)
        if not gpus:
            return
        self.hold(shard, gpus)
        try:
            await self._unused(gpus, tell)
        except BaseException:
            self.give_back(shard)
            raise

    def give_back(self, shard: str) -> None:
        self._holders = {gpu: holder for gpu, holder in self._holders.items() if holder != shard}

    async def _unused(self, gpus: Sequence[str], tell: Callable[[str], None]) -> None:
        deadline = self._clock.monotonic() + USERS_WAIT
        while found := await self._users(gpus):
            text = f"GPU {', '.join(sorted({each.gpu for each in found}))} is used by {', '.join(map(in_words, found))}"
            if self._clock.monotonic() >= deadline:
                raise AttemptError(f"{text}, which no shard of this node knows; stop that, or keep the GPU out of llmgw")
            tell(text)
            await self._clock.sleep(USERS_PAUSE)
