"""Runs the NVML probe with limits and collects what it found, whatever happened to it."""

from __future__ import annotations

import asyncio

import msgspec

from llmgw_agent.hardware.helper import Helper, HelperEndedError, HelperStalledError
from llmgw_agent.hardware.raw import At, Line, NvmlFacts

PROBE = "llmgw_agent.hardware.nvml_probe"
_decoder = msgspec.json.Decoder(Line)


async def look(deadline: float, module: str = PROBE) -> NvmlFacts:
    """All GPUs, within ``deadline`` seconds.

    When a step of one GPU takes more than half of the deadline, the probe is started again without that GPU, so that the
    others still count. ``hung`` has the steps that hung, ``crashed`` the last words of a probe that died.
    """
    facts = NvmlFacts()
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while not facts.finished() and (left := end - loop.time()) > 0:
        skip = [str(step.index) for step in facts.hung if step.index is not None]
        await _run(facts, module, ["--skip", *skip] if skip else [], end, stall=min(left, deadline / 2))
    return facts


async def _run(facts: NvmlFacts, module: str, args: list[str], end: float, stall: float) -> None:
    loop = asyncio.get_running_loop()
    facts.begin()
    helper = await Helper.start(module, args)
    try:
        while not facts.finished():
            left = max(0.0, end - loop.time())
            # Without a GPU to leave out there is nothing to start again for.
            line = await helper.line(min(stall, left) if facts.at_gpu() else left)
            facts.take(_decoder.decode(line))
    except HelperStalledError:
        facts.hung.append(facts.last or At(step="start"))
    except HelperEndedError as error:
        facts.crashed = str(error)
    except msgspec.MsgspecError as error:
        facts.crashed = f"the probe printed what cannot be read: {error}"
    finally:
        await helper.close()
