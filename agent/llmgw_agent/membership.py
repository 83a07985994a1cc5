"""Which cluster the agent belongs to. "Empty" or "another store" never means "stop everything"."""

from __future__ import annotations

import logging
from collections.abc import Callable

from llmgw_agent.shard.context import Context
from llmgw_agent.shard.state import StateDir
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.errors import StoreError, StoreUnsuitableError
from llmgw_proto import SCHEMA_VERSION, keyspace
from llmgw_proto.records import AliveRecord, BadRecordError, ClusterRecord, InventoryRecord

LOOK_SECONDS = 1.0
SAY_AGAIN_SECONDS = 60.0
Say = Callable[[str], None]
logger = logging.getLogger(__name__)


def objection(cluster: ClusterRecord | None, known_id: str | None, cluster_file: object) -> str | None:
    """Why this store must not be listened to; None if it may be. Pure."""
    if cluster is None:
        return "the store holds no cluster yet; a coordinator creates it"
    if known_id is not None and cluster.id != known_id:
        return (
            f"the store holds cluster {cluster.id} ({cluster.name}), this agent belongs to {known_id}; correct etcd.endpoints, "
            f"or, to give the agent to the new cluster, delete {cluster_file} (engines that it does not wish are then stopped)"
        )
    if cluster.schema_version > SCHEMA_VERSION:
        return f"the store has layout {cluster.schema_version}, this agent reads {SCHEMA_VERSION}; update the agent"
    return None


def occupant(node: str, inventory: InventoryRecord | None, alive: AliveRecord | None, boot: str) -> str | None:
    """Who else is registered under the node's name right now; None if nobody, or this host itself in its present boot. Pure."""
    if alive is None or inventory is None or inventory.boot_id == boot:
        return None
    return (
        f"node {node} is alive as host {inventory.hostname} ({alive.grpc_address}); two hosts must not share a name: set "
        "another node.name on one of them. After a reboot of this host it passes by itself within seconds"
    )


async def wait_for_name(context: Context, store: Store, say: Say) -> None:
    """Waits until no other host is registered under this node's name. Until then nothing is published or obeyed."""
    said = ""
    while True:
        try:
            inventory = await store.get(keyspace.inventory(context.node))
            alive = await store.get(keyspace.alive(context.node))
            problem = occupant(
                context.node,
                InventoryRecord.decode(inventory.value) if inventory is not None else None,
                AliveRecord.decode(alive.value) if alive is not None else None,
                context.boot,
            )
        except BadRecordError:
            return
        except StoreError as error:
            problem = f"cannot read the node's keys: {error}"
        if problem is None:
            return
        if problem != said:
            said = problem
            logger.warning("not registering", extra={"fields": {"cause": problem}})
            say(f"waiting: {problem}")
        await context.clock.sleep(LOOK_SECONDS)


async def objection_now(state: StateDir, store: Store) -> str | None:
    """Why the store as it is now must not be written to; None if it may be.

    Raises:
        StoreError: it does not answer.
    """
    found = await store.get(keyspace.CLUSTER)
    try:
        cluster = ClusterRecord.decode(found.value, keyspace.CLUSTER) if found is not None else None
    except BadRecordError as error:
        return str(error)
    return objection(cluster, state.cluster_id(), state.cluster_file)


async def find_cluster(context: Context, store: Store, say: Say) -> ClusterRecord:
    """Waits until the store holds the agent's own cluster. Until then nothing is published, obeyed or stopped.

    ``say`` tells the operator what is waited for.

    Raises:
        StoreUnsuitableError: the server's version is not to be trusted.
    """
    state, clock = context.state, context.clock
    said, said_at = "", 0.0
    while True:
        try:
            found = await store.get(keyspace.CLUSTER)
            cluster = ClusterRecord.decode(found.value, keyspace.CLUSTER) if found is not None else None
            problem = objection(cluster, state.cluster_id(), state.cluster_file)
        except StoreUnsuitableError:
            raise
        except (StoreError, BadRecordError) as error:
            cluster, problem = None, f"cannot read the cluster: {error}"
        if cluster is not None and problem is None:
            if state.cluster_id() is None:
                state.set_cluster_id(cluster.id)
            return cluster
        if problem is not None and (problem != said or clock.monotonic() - said_at >= SAY_AGAIN_SECONDS):
            said, said_at = problem, clock.monotonic()
            logger.warning("not joining", extra={"fields": {"cause": problem}})
            say(f"waiting: {problem}")
        await clock.sleep(LOOK_SECONDS)
