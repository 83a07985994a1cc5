"""The cluster record: made once, by the first leader."""

from __future__ import annotations

import logging
import uuid

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import CreateRevisionIs, PutOp, Store
from llmgw_base.etcd.errors import StoreUnsuitableError
from llmgw_base.secrets import new_cluster_secret
from llmgw_coordinator.leader.fence import Term, fenced
from llmgw_proto import SCHEMA_VERSION, keyspace
from llmgw_proto.records import ClusterRecord

logger = logging.getLogger(__name__)


async def create_if_absent(store: Store, term: Term, clock: Clock, name: str) -> None:
    """Writes the record unless there is one. A lost answer is no matter: whoever asks again finds it there or not."""
    record = ClusterRecord(id=str(uuid.uuid4()), name=name, created_at=clock.wall(), engine_secret=new_cluster_secret())
    if await fenced(store, term, [CreateRevisionIs(keyspace.CLUSTER, 0)], [PutOp(keyspace.CLUSTER, record.encode())]):
        logger.info("cluster created", extra={"fields": {"cluster": record.id, "name": name}})


def require_known_schema(cluster: ClusterRecord) -> None:
    """Refuses a cluster that a newer llmgw has changed in ways this one cannot know.

    Raises:
        StoreUnsuitableError: its schema version is greater than this program's.
    """
    if cluster.schema_version > SCHEMA_VERSION:
        raise StoreUnsuitableError(
            f"cluster {cluster.name} ({cluster.id}) has schema version {cluster.schema_version}, this program knows only "
            f"{SCHEMA_VERSION}; upgrade this coordinator"
        )
