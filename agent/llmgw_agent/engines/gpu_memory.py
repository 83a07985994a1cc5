"""Whether weights can fit into the memory of the GPUs at all, told before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw_agent.errors import RejectedError

_GIB = 1 << 30


def check_gpu_memory(share: int, gpus: Sequence[str], memory: Mapping[str, int], fraction: float, knob: str) -> None:
    """Nothing is said of GPUs whose size is not known.

    Args:
        share: bytes of weights that each GPU has to hold.
        memory: bytes of GPUs by UUID.
        fraction: of a GPU's memory that the engine takes at most.
        knob: the flag that sets it.

    Raises:
        RejectedError: the share is more than that.
    """
    known = [memory[gpu] for gpu in gpus if memory.get(gpu)]
    if not known or share <= min(known) * fraction:
        return
    smallest = min(known)
    more = f", or raise {knob}" if share <= smallest else ""
    raise RejectedError(
        f"GPU memory: each of the model's GPUs has to hold about {share / _GIB:.1f} GiB of weights, and of the "
        f"{smallest / _GIB:.1f} GiB of a GPU here the engine takes {smallest * fraction / _GIB:.1f} GiB at most; "
        f"use more or larger GPUs, more nodes, or a smaller quantisation{more}"
    )
