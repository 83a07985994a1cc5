"""A GPU is used only after its last holder is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmgw_agent.errors import AttemptError
from llmgw_agent.hardware.processes import ForeignProcess
from llmgw_agent.shard.gpu_users import ask_driver
from llmgw_agent.shard.gpus import Gpus
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.nvml_fake import FakeNvml


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


class Driver:
    """Says who is on the GPUs; ``found`` changes as time goes by."""

    def __init__(self, *found: ForeignProcess) -> None:
        self.found = list(found)
        self.asked: list[Sequence[str]] = []

    async def __call__(self, gpus: Sequence[str]) -> list[ForeignProcess]:
        self.asked.append(gpus)
        return [each for each in self.found if each.gpu in gpus]


def test_a_gpu_on_which_somebody_still_computes_is_waited_for_by_name() -> None:
    async def body() -> None:
        clock, driver, told = FakeClock(), Driver(ForeignProcess("g0", 7, "python3", 10 << 30)), list[str]()
        gpus = Gpus(clock, driver)
        await gpus.take("cpu-only", [])
        await gpus.take("other", ["g1"], told.append)
        assert driver.asked == [["g1"]]
        assert told == []
        taking = asyncio.create_task(gpus.take("a", ["g0"], told.append))
        await clock.advance(3)
        assert not taking.done()
        assert set(told) == {"GPU g0 is used by python3 (pid 7, 10 GiB)"}
        second = asyncio.create_task(gpus.take("b", ["g0"], told.append))
        await settle()
        assert told[-1] == "waits until a has ended on its GPUs"
        driver.found.clear()
        await clock.advance(2)
        assert taking.done()
        assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    asyncio.run(body())


def test_who_does_not_leave_a_gpu_is_named_and_left_alone() -> None:
    async def body() -> None:
        clock, driver = FakeClock(), Driver(ForeignProcess("g0", 7, "python3", None))
        gpus = Gpus(clock, driver)
        taking = asyncio.create_task(gpus.take("a", ["g0", "g1"]))
        await clock.advance(60)
        with pytest.raises(
            AttemptError, match=r"GPU g0 is used by python3 \(pid 7\), which no shard .*keep the GPU out of llmgw"
        ):
            await taking
        await gpus.take("b", ["g1"])

    asyncio.run(body())


def test_the_driver_is_asked_for_who_computes_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(3))
    nvml.add("gpu0.proc0 = 4242,5368709120", "gpu1.proc0 = 4343,1000000", "gpu1.proc1 = 4444", "gpu2.proc0 = 4545,5368709120")
    found = asyncio.run(ask_driver([machine.uuid(0), machine.uuid(1)]))
    assert [(each.gpu, each.pid) for each in found] == [(machine.uuid(0), 4242), (machine.uuid(1), 4444)]
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert asyncio.run(ask_driver([machine.uuid(0)])) == [], "without a driver there is nobody to ask"
