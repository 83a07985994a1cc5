"""Bodies and answers of the admin API. Their JSON schemas are the OpenAPI document's."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from llmgw_proto.records import (
    FabricMapRecord,
    GangPhase,
    InventoryRecord,
    ModelSpec,
    NodeStatusRecord,
    RouterLoad,
    ShardRole,
)


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelState(StrEnum):
    """
    ==============  ====================================================================================
    READY           as many replicas as wished answer, all of the newest spec
    PROGRESSING     on the way there, nothing is wrong
    PENDING         nothing is placed, the reason says what is missing
    DEGRADED        fewer replicas than wished answer, and something is wrong with the rest
    FAILED          no replica answers and none will without help, or the model cannot be planned
    SCALED_TO_ZERO  none are wished and none are left
    REMOVING        the model is gone, replicas of it are not yet
    ==============  ====================================================================================
    """

    READY = "Ready"
    PROGRESSING = "Progressing"
    PENDING = "Pending"
    DEGRADED = "Degraded"
    FAILED = "Failed"
    SCALED_TO_ZERO = "Scaled to zero"
    REMOVING = "Removing"


class ShardView(Shape):
    """What runs of a replica on one node."""

    shard: str
    rank: int
    role: ShardRole
    node: str
    state: str = Field(description="as the agent reports it; Assigned until it does")
    reason: str
    pid: int | None
    port: int | None
    phase: GangPhase | None = Field(description="where it stands among the shards of a replica over several nodes")
    attempt: int | None = Field(description="of the replica to start on its nodes, that the phase belongs to")
    gpus: list[str]
    log_path: str


class ReplicaView(Shape):
    """A replica as a whole: as ready as the least ready of its shards. Process, address and restarts are the head's."""

    id: str
    model: str
    node: str = Field(description="the head's")
    nodes: list[str] = Field(description="of all its shards, by rank")
    epoch: int
    state: str = Field(description="as the agents report it; Assigned until they do")
    reason: str
    url: str | None
    pid: int | None
    port: int | None
    restarts: int
    started_at: float | None = Field(description="Unix time")
    next_attempt_at: float | None = Field(description="Unix time of the next start, when the last one failed")
    gpus: list[str]
    draining: bool
    drained: bool = Field(description="an operator keeps it out of routing; its engine stays up")
    generation: int
    engine: str
    engine_version: str
    log_path: str
    shards: list[ShardView] = Field(description="by rank, the head first")


class ModelSummary(Shape):
    name: str
    wanted: int
    ready: int
    state: ModelState
    reason: str


class ModelView(ModelSummary):
    spec: ModelSpec | None = Field(description="null while a removed model's replicas end, or when it cannot be read")
    replicas: list[ReplicaView]


class NodeView(Shape):
    name: str
    alive: bool
    inventory: InventoryRecord | None
    status: NodeStatusRecord | None
    grpc_address: str | None
    replicas: list[str]
    memory_committed_bytes: int


class ClusterView(Shape):
    id: str
    name: str


class CoordinatorView(Shape):
    id: str
    address: str
    version: str
    started_at: float
    leader: bool


class RouterView(Shape):
    id: str
    address: str
    version: str
    models: dict[str, RouterLoad]


class NodeCounts(Shape):
    total: int
    alive: int


class StatusView(Shape):
    cluster: ClusterView | None
    leader: str | None
    stale: bool = Field(description="etcd does not answer; what is shown is what was known before")
    coordinators: list[CoordinatorView]
    routers: list[RouterView]
    nodes: NodeCounts
    models: list[ModelSummary]
    problems: list[str]


class NodeList(Shape):
    nodes: list[NodeView]


class ModelList(Shape):
    models: list[ModelView]


class ReplicaList(Shape):
    replicas: list[ReplicaView]


class FabricList(Shape):
    fabrics: list[FabricMapRecord]


class Removal(Shape):
    name: str
    replicas: list[str] = Field(description="ids of the replicas that now drain and stop")


class ScaleBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(ge=0, le=10_000)


class HoldBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(default="", max_length=500)


class LiftBody(BaseModel):
    """Nothing: ``{}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PowerBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    watts: float | None = Field(gt=0, description="null restores the card's default")


class BandwidthBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    peer: str = Field(min_length=1, description="the other node")
    force: bool = Field(default=False, description="also while replicas serve on the ports to be tested")
    seconds: float = Field(default=5, gt=0, le=60)


class StandingView(Shape):
    subject: str = Field(description="UUID of the GPU, or the port")
    quarantine: str | None = Field(description="why it may not be used; null when it may")


class PowerView(Shape):
    gpu: str
    watts: float = Field(description="the limit that now holds")


class BandwidthView(Shape):
    node: str
    peer: str
    method: str = Field(description="rdma (ib_write_bw) or tcp")
    gigabits_per_second: float
    bytes: int
    seconds: float
    streams: int = Field(description="connections at once, for tcp")
    port: str | None = Field(description="of the node, for rdma")
    peer_port: str | None
    note: str = Field(description="why a quicker way was not taken")


class Ready(Shape):
    ready: bool
    leader: bool
    stale: bool


class ErrorDetail(Shape):
    path: str
    message: str


class ErrorBody(Shape):
    code: str
    message: str
    remedy: str
    details: list[ErrorDetail] = []


class ErrorView(Shape):
    error: ErrorBody
