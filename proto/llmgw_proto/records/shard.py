"""The wish (assignment), the truth (shard) and the live address (endpoint)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from llmgw_proto.records.base import Record


class ShardState(StrEnum):
    """Where a shard is in its life; the table of moves is ``llmgw_agent.shard.machine``."""

    ASSIGNED = "Assigned"
    INSTALLING = "Installing"
    FETCHING = "Fetching"
    STARTING = "Starting"
    PROBING = "Probing"
    READY = "Ready"
    SUSPECT = "Suspect"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REJECTED = "Rejected"


class ShardRole(StrEnum):
    """A replica on one node has one shard, its head; workers belong to replicas that span nodes."""

    HEAD = "head"
    WORKER = "worker"


class AssignmentRecord(Record):
    """``assignments/<node>/<shard>``: the leader's wish. Deleting the key is the wish that the shard drains and stops."""

    shard: str = Field(description="<replica>.<rank>")
    replica: str
    model: str
    epoch: int = Field(ge=1, description="grows with each reassignment of the replica; an agent refuses an older one")
    engine: str
    version: str | None = None
    source: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    command: list[str] = []
    health_path: str = "/health"
    capabilities: list[str] | None = None
    gpus: list[str] = Field(default=[], description="GPU UUIDs")
    memory_bytes: int = Field(default=0, description="host memory set aside; 0 lets the agent judge")
    role: ShardRole = ShardRole.HEAD
    rank: int = 0
    peers: list[str] = Field(default=[], description="nodes of the replica's shards by rank, when it spans several")
    policy: str | None = Field(default=None, description="the model's routing policy, passed on to the endpoint")
    drain_seconds: float = 30
    generation: int = Field(default=0, description="of the model spec that this wish was made from")
    node_selector: dict[str, str] = Field(default={}, description="labels that the profile demanded when the node was chosen")
    gpu_class: str | None = Field(default=None, description="class of GPU that the profile demanded, None if any would do")
    tried: list[str] = Field(default=[], description="nodes on which this replica failed for good before; the leader's memory")


class Timings(Record):
    """Seconds that the last start took, phase by phase; None: not measured, as for what was there already."""

    install: float | None = Field(default=None, description="until the engine's program was there")
    fetch: float | None = Field(default=None, description="until the weights were there")
    start_to_listen: float | None = None
    listen_to_ready: float | None = None


class GangPhase(StrEnum):
    """Where one member of a replica over several nodes stands; what follows is ``llmgw_agent.shard.gang.decide``."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    STARTED = "started"
    READY = "ready"
    DOWN = "down"


class GangState(Record):
    """What the agents of a replica over several nodes tell each other, within their shard records.

    The head counts the attempts; every member tells which of them its phase belongs to.
    """

    attempt: int = Field(default=0, ge=0, description="0: none yet")
    phase: GangPhase = GangPhase.PREPARING
    address: str = Field(default="", description="where the other members reach this one")
    port: int = Field(
        default=0, ge=0, le=65535, description="of the head: where the members meet; of a worker: where it listens"
    )
    note: str = Field(default="", description="for down: cause and remedy in one sentence")


class ShardRecord(Record):
    """``shards/<node>/<shard>``: what is true, written by that agent without a lease, deleted when nothing of it is left."""

    shard: str
    replica: str
    model: str
    node: str
    epoch: int
    state: ShardState
    reason: str = Field(
        default="",
        description="for Failed, Rejected and Suspect: cause and remedy in one sentence; for Installing how far it is",
    )
    engine: str
    engine_version: str = ""
    pid: int | None = None
    port: int | None = None
    restarts: int = 0
    generation: int = 0
    gpus: list[str] = []
    memory_bytes: int = Field(default=0, description="host memory set aside by the wish, or found needed by the agent")
    peak_rss_bytes: int = 0
    started_at: float | None = None
    updated_at: float
    next_attempt_at: float | None = Field(default=None, description="for Failed with a restart ahead: when, Unix time")
    log_path: str = ""
    timings: Timings = Timings()
    drained: bool = Field(default=False, description="an operator keeps it out of routing; its engine stays up")
    peak_gpu_bytes: dict[str, int] = Field(
        default={}, description="by the GPU's UUID: the most memory that its processes had there, in this attempt"
    )
    tokens_per_second: float | None = Field(
        default=None,
        description="the highest rate of generated tokens in this attempt, of all requests together, between two looks at the "
        "engine's own counters some seconds apart, so at least that much is possible; of an engine that only counts what is "
        "finished (llama.cpp) by the time that it says it took to decode it",
    )
    rank: int = 0
    gang: GangState | None = Field(default=None, description="for a shard of a replica that spans nodes")


class EndpointRecord(Record):
    """``endpoints/<node>/<replica>``, under the agent's lease: where routers may send requests."""

    replica: str
    node: str
    model: str
    epoch: int
    url: str = Field(description="http://host:port of the engine, no path")
    served_name: str = Field(description="the model name that the engine itself answers to")
    capabilities: list[str]
    weight: int = Field(default=100, ge=0, le=10_000)
    draining: bool = False
    max_concurrency: int | None = Field(default=None, ge=1, description="requests at once that the engine takes, when known")
    policy: str | None = None
    max_model_len: int | None = None
    kv_events: bool = Field(
        default=False, description="the node's agent forwards the engine's KV-cache events (gRPC Shards.KvEvents)"
    )
