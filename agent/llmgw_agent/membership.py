"""Which cluster the agent belongs to. "Empty" or "another store" never means "stop everything"."""

from __future__ import annotations

import logging

from llmgw_agent.shard.context import Context
from llmgw_agent.shard.state import StateDir
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.errors import StoreError, StoreUnsuitableError
from llmgw_proto import SCHEMA_VERSION, keyspace
from llmgw_proto.records import BadRecordError, ClusterRecord

LOOK_SECONDS = 1.0
SAY_AGAIN_SECONDS = 60.0
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


async def find_cluster(context: Context, store: Store) -> ClusterRecord:
    """Waits until the store holds the agent's own cluster. Until then nothing is published, obeyed or stopped.

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
        await clock.sleep(LOOK_SECONDS)
