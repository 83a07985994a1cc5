"""A watch over no hardware: tests of other things start no probes."""

from __future__ import annotations

import asyncio

from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.raw import NvmlFacts
from llmgw_agent.hardware.watch import HardwareWatch


class QuietWatch(HardwareWatch):
    async def run(self) -> None:
        await self.look()
        await asyncio.Event().wait()

    async def look(self) -> Hardware:
        self._found = Hardware(NvmlFacts(complete=True), None, None)
        self._tell()
        return self._found
