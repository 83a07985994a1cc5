"""Who computes on GPUs now, asked of the driver right before an engine gets them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw_agent.hardware.nvml_look import look
from llmgw_agent.hardware.processes import ForeignProcess, foreign
from llmgw_agent.hardware.raw import Gpu

LOOK_SECONDS = 5.0
#: A process that holds less is a monitor or a desktop: it does not keep an engine from running.
LITTLE = 512 << 20


async def ask_driver(gpus: Sequence[str]) -> list[ForeignProcess]:
    """The processes that compute on these GPUs (by UUID), llmgw's own too.

    Empty if the driver does not answer: whether a GPU can be used then is for the engine to find out. A part of a GPU (MIG)
    cannot be asked about: the driver tells who uses the whole of it.
    """
    facts = await look(LOOK_SECONDS)
    return users(facts.gpus.values(), gpus)


def users(known: Iterable[Gpu], gpus: Sequence[str]) -> list[ForeignProcess]:
    """Those who hold more than a little of its memory, or nobody knows how much."""
    wanted = set(gpus)
    found = [each for gpu in known if gpu.uuid in wanted for each in foreign(gpu.uuid or "", gpu.processes, lambda _: False)]
    return [each for each in found if each.memory is None or each.memory >= LITTLE]
