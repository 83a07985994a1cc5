"""Records about the cluster itself and the programs that serve it."""

from __future__ import annotations

from pydantic import Field

from llmgw_proto import SCHEMA_VERSION
from llmgw_proto.records.base import Record


class ClusterRecord(Record):
    """``cluster``: written once, by the first leader."""

    id: str
    name: str
    created_at: float = Field(description="Unix time in seconds")
    schema_version: int = SCHEMA_VERSION
    engine_secret: str = Field(
        description="32 random bytes as hex. Engine keys and agent call tokens are derived from it, see llmgw_base.secrets"
    )
    feature_gates: dict[str, bool] = {}


class CoordinatorRecord(Record):
    """``coordinators/<id>`` and the value of the candidate's key ``leader/<id>``; both under the coordinator's own lease."""

    id: str
    address: str = Field(description="URL of the admin API")
    version: str
    started_at: float


class RouterLoad(Record):
    """What one router carries for one model."""

    running: int = Field(default=0, description="requests relayed now")
    queued: int = Field(default=0, description="requests that wait for a replica")
    requests: int = Field(default=0, description="requests finished since the router started")
    errors: int = Field(default=0, description="of those, answered 5xx")


class RouterRecord(Record):
    """``routers/<id>``, under the router's own lease, rewritten every 2 s while it changes."""

    id: str
    address: str = Field(description="URL of the OpenAI API")
    version: str
    started_at: float
    models: dict[str, RouterLoad] = {}
