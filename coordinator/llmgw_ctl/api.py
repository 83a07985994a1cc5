"""What the admin API answers, as far as llmgwctl reads it.

Every key may be absent: a coordinator of another version may answer more or less.
"""

from __future__ import annotations

from typing import Any, TypedDict


class ShardView(TypedDict, total=False):
    shard: str
    rank: int
    role: str
    node: str
    state: str
    reason: str
    pid: int | None
    port: int | None
    phase: str | None
    attempt: int | None
    gpus: list[str]
    log_path: str


class ReplicaView(TypedDict, total=False):
    id: str
    model: str
    node: str
    nodes: list[str]
    epoch: int
    state: str
    reason: str
    url: str | None
    pid: int | None
    port: int | None
    restarts: int
    started_at: float | None
    next_attempt_at: float | None
    gpus: list[str]
    draining: bool
    drained: bool
    generation: int
    engine: str
    engine_version: str
    log_path: str
    shards: list[ShardView]


class ModelView(TypedDict, total=False):
    name: str
    wanted: int
    ready: int
    state: str
    reason: str
    spec: dict[str, Any] | None
    replicas: list[ReplicaView]


class NodeView(TypedDict, total=False):
    name: str
    alive: bool
    inventory: dict[str, Any] | None
    status: dict[str, Any] | None
    grpc_address: str | None
    replicas: list[str]
    memory_committed_bytes: int


class ClusterView(TypedDict, total=False):
    id: str
    name: str


class CoordinatorView(TypedDict, total=False):
    id: str
    address: str
    version: str
    started_at: float
    leader: bool


class RouterView(TypedDict, total=False):
    id: str
    address: str
    version: str
    models: dict[str, Any]


class NodeCounts(TypedDict, total=False):
    total: int
    alive: int


class StatusView(TypedDict, total=False):
    cluster: ClusterView | None
    leader: str | None
    stale: bool
    coordinators: list[CoordinatorView]
    routers: list[RouterView]
    nodes: NodeCounts
    models: list[ModelView]
    problems: list[str]
