"""How long one pass of the planner takes: an empty cluster filled in one pass, and the same cluster when all is in place.

python bench/planner.py [--nodes 1000] [--gpus 8] [--models 500] [--replicas 8] [--nvlink] [--span 1]
"""

from __future__ import annotations

import argparse
import time

from llmgw_coordinator.planner import Assigned, Create, Node, Placed, Plan, World, plan
from llmgw_proto.records import (
    CpuFacts,
    EngineInfo,
    GpuFacts,
    InventoryRecord,
    MemoryFacts,
    ModelSpec,
    Profile,
    ReplicaRange,
    ShardRecord,
    ShardState,
)

GIB = 2**30


def node(index: int, gpus: int, nvlink: bool) -> Node:
    name = f"node{index:04}"
    return Node(
        name,
        InventoryRecord(
            node=name,
            version="0",
            boot_id="boot",
            hostname=name,
            cpu=CpuFacts(cores=96),
            memory=MemoryFacts(total_bytes=1024 * GIB),
            gpus=[
                GpuFacts(uuid=f"GPU-{index:04}-{gpu}", name="H100", memory_bytes=80 * GIB, pci=f"{gpu:02}", numa=gpu // 4)
                for gpu in range(gpus)
            ],
            engines=[EngineInfo(name="llamacpp", version="1")],
            labels={"pool": "even" if index % 2 else "odd"},
            topology={"islands": [{"uuids": [f"GPU-{index:04}-{gpu}" for gpu in range(gpus)]}]} if nvlink else {},
        ),
    )


def model(index: int, replicas: int, span: int) -> ModelSpec:
    selector = {"pool": "even"} if index % 5 == 0 else {}
    profile = Profile(engine="llamacpp", gpus=1 + index % 2, memory="32GiB", node_selector=selector, nodes=span)
    return ModelSpec(name=f"org/model{index:03}", source="/m.gguf", profiles=[profile], replicas=ReplicaRange(min=replicas))


def timed(world: World, runs: int = 3) -> tuple[float, Plan]:
    """The best of a few runs: other programs on the machine only ever make a run slower."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        outcome = plan(world)
        best = min(best, time.perf_counter() - start)
    return best, outcome


def ready(placed: Placed) -> ShardRecord:
    wish = placed.record
    return ShardRecord(
        shard=wish.shard,
        replica=wish.replica,
        model=wish.model,
        node=placed.node,
        epoch=wish.epoch,
        state=ShardState.READY,
        engine=wish.engine,
        gpus=wish.gpus,
        memory_bytes=wish.memory_bytes,
        updated_at=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--replicas", type=int, default=8, help="per model")
    parser.add_argument("--nvlink", action="store_true", help="each node's GPUs are one NVLink island")
    parser.add_argument("--span", type=int, default=1, help="nodes of each replica")
    options = parser.parse_args()
    nodes = {each.name: each for each in (node(index, options.gpus, options.nvlink) for index in range(options.nodes))}
    models = {each.name: each for each in (model(index, options.replicas, options.span) for index in range(options.models))}

    seconds, filled = timed(World(models, nodes, [], []))
    creates = [each for each in filled.decisions if isinstance(each, Create)]
    print(f"empty to full: {seconds:.3f} s, {len(creates)} replicas placed, {len(filled.reasons)} models short")

    placed = [shard for each in creates for shard in each.shards]
    assigned = [Assigned(each.node, each.record) for each in placed]
    shards = [ready(each) for each in placed]
    seconds, steady = timed(World(models, nodes, assigned, shards))
    print(f"steady:        {seconds:.3f} s, {len(steady.decisions)} decisions")

    lost = {
        name: Node(name, each.inventory, gone_for=61.0 + 100 * index)
        for index, (name, each) in enumerate(nodes.items())
        if index < 100
    }
    seconds, moved = timed(World(models, nodes | lost, assigned, shards))
    print(f"100 nodes lost one by one: {seconds:.3f} s, {len(moved.decisions)} decisions")


if __name__ == "__main__":
    main()
