"""A GPU is used only after its last holder is gone."""

from __future__ import annotations

import asyncio

from llmgw_agent.shard.gpus import Gpus
from llmgw_testing.clock import FakeClock, settle


def test_who_comes_later_waits_until_all_its_gpus_were_given_back() -> None:
    async def body() -> None:
        clock = FakeClock()
        gpus = Gpus(clock)
        await gpus.take("a", ["g0", "g1"])
        gpus.hold("b", ["g2"])
        await gpus.take("c", ["g3"])
        await gpus.take("cpu-only", [])
        waiting = asyncio.create_task(gpus.take("d", ["g1", "g2"]))
        await clock.advance(10)
        assert not waiting.done()
        gpus.give_back("a")
        await clock.advance(10)
        assert not waiting.done(), "it takes all or none"
        gpus.give_back("b")
        await clock.advance(1)
        assert waiting.done()
        await gpus.take("e", ["g0"])
        await gpus.take("d", ["g1", "g2"])
        late = asyncio.create_task(gpus.take("f", ["g2"]))
        await settle()
        assert not late.done()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)

    asyncio.run(body())
