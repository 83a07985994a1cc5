"""Whether a test may run now. Pure: a test takes the bandwidth that requests need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw_agent.hardware.bandwidth.errors import PortsBusyError

#: States in which an engine serves, or is about to.
SERVING = frozenset({"Starting", "Probing", "Ready", "Suspect", "Draining"})


@dataclass(frozen=True)
class RunningShard:
    """A shard on this node; ``spans_nodes`` when its replica talks to shards on other nodes."""

    shard: str
    state: str
    gpus: Sequence[str]
    spans_nodes: bool = False


def ports_of(shard: RunningShard, gpu_nics: Mapping[str, Sequence[str]]) -> set[str]:
    """The HCAs nearest to the shard's GPUs."""
    return {hca for gpu in shard.gpus for hca in gpu_nics.get(gpu, ())}


def check(
    shards: Iterable[RunningShard], hca: str | None, gpu_nics: Mapping[str, Sequence[str]], *, forced: bool = False
) -> None:
    """Lets a test of ``hca`` pass (None: over TCP, on the network that all requests come by).

    Raises:
        PortsBusyError: a replica serves there; the message names it.
    """
    if forced:
        return
    for shard in shards:
        if shard.state not in SERVING:
            continue
        if hca is None:
            raise PortsBusyError(
                f"{shard.shard} is {shard.state} on this node and takes its requests over the network to be tested: "
                "drain it first, or force the test"
            )
        # What serves from one node leaves the fabric alone; across nodes it uses the ports next to its GPUs, or any port.
        used = ports_of(shard, gpu_nics)
        if shard.spans_nodes and (hca in used or not used):
            raise PortsBusyError(f"{shard.shard} is {shard.state} and uses {hca}: drain it first, or force the test")
