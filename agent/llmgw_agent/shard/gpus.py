"""Who uses which GPU of this node: a GPU is used only after its last holder is proved gone."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_base.clock import Clock

LOOK_SECONDS = 0.1


class Gpus:
    """GPUs by UUID. A holder gives them back when all of its processes are gone, not when it was asked to end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holders: dict[str, str] = {}

    def hold(self, shard: str, gpus: Sequence[str]) -> None:
        """For an engine that runs already: what is, is."""
        self._holders.update(dict.fromkeys(gpus, shard))

    async def take(self, shard: str, gpus: Sequence[str]) -> None:
        """Waits until none of them is another shard's, then holds all of them at once."""
        while any(self._holders.get(gpu, shard) != shard for gpu in gpus):
            await self._clock.sleep(LOOK_SECONDS)
        self.hold(shard, gpus)

    def give_back(self, shard: str) -> None:
        self._holders = {gpu: holder for gpu, holder in self._holders.items() if holder != shard}
