"""What agents tell of a replica's shard and of their node's figures, as the admin API shows it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, Field

from llmgw_coordinator.api.shapes import Shape
from llmgw_proto import shards_pb2 as pb


class MoveView(Shape):
    at: float = Field(description="Unix time")
    state: str
    reason: str


class ProcessView(Shape):
    pid: int
    parent: int
    name: str
    rss_bytes: int


class LogFileView(Shape):
    name: str
    bytes: int
    modified_at: float = Field(description="Unix time")


class MeasuredView(Shape):
    """Seconds of the last start by phase, and what was measured since; null: not measured."""

    install: float | None
    fetch: float | None
    start_to_listen: float | None
    listen_to_ready: float | None
    peak_rss_bytes: int = Field(description="of the engine's first process")
    peak_gpu_bytes: dict[str, int] = Field(description="by the GPU's UUID")
    tokens_per_second: float | None = Field(description="the highest rate of generated tokens, of all requests together")


class ShardDetailsView(Shape):
    """One shard as its agent knows it."""

    node: str
    shard: str
    replica: str
    model: str
    engine: str
    engine_version: str
    epoch: int
    state: str
    reason: str
    drained: bool = Field(description="an operator keeps it out of routing")
    history: list[MoveView] = Field(description="since the agent's start, oldest first, at most 30")
    attempt: str = Field(description="names one start of the engine; empty before the first")
    argv: list[str] = Field(description="the engine's command line; secrets are replaced by ***")
    environment: list[str] = Field(description="names of the variables that were set for it")
    host: str
    ports: dict[str, int]
    started_at: float = Field(description="Unix time; 0 when no engine runs")
    processes: list[ProcessView] = Field(description="the engine and all that it started")
    connections: int = Field(description="open to the engine's port")
    requests: int | None = Field(description="running and waiting by the engine's own figures; null when it has none")
    figures: dict[str, float] = Field(description="the engine's own that show whether it gets on, under its names for them")
    restarts: int
    failures: int = Field(description="in a row, which count for the breaker")
    next_attempt_at: float = Field(description="Unix time; 0: none is ahead")
    logs: list[LogFileView]
    measured: MeasuredView
    kv_events: bool = Field(description="the engine publishes KV-cache events")

    @classmethod
    def of(cls, node: str, found: pb.ShardDetails) -> ShardDetailsView:
        return cls.model_validate({"node": node, **plain(found)})


class DrainView(Shape):
    replica: str
    node: str
    drained: bool
    requests: int | None = Field(description="running and waiting by the engine's own figures; null when it has none")
    connections: int = Field(description="open to the engine's port")


class RestartBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    drain_seconds: float | None = Field(default=None, ge=0, le=86_400, description="null: as the model says")


class EmptyBody(BaseModel):
    """Nothing: ``{}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RestartView(Shape):
    replica: str
    node: str
    attempt: str = Field(description="of the engine that is being ended; empty when none runs")


class GpuFigures(Shape):
    uuid: str
    age: float = Field(description="seconds since it was sampled")
    utilization: int | None = Field(description="percent")
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power: float | None = Field(description="watts")
    power_limit: float | None = Field(description="watts")
    temperature: int | None = Field(description="degrees Celsius")
    clock_sm: int | None = Field(description="MHz")
    quarantine: str


class ShardFigures(Shape):
    shard: str
    model: str
    state: str
    drained: bool
    requests: int | None
    tokens_per_second: float | None
    rss_bytes: int
    gpu_bytes: dict[str, int]


class NodeFigures(Shape):
    """One line of a node's telemetry."""

    node: str
    at: float = Field(description="Unix time")
    load1: float
    memory_available_bytes: int
    gpus: list[GpuFigures]
    shards: list[ShardFigures]

    @classmethod
    def of(cls, node: str, found: pb.TelemetrySample) -> NodeFigures:
        return cls.model_validate({"node": node, **plain(found)})


def plain(message: Message) -> dict[str, Any]:
    """A message as plain values under the names in its .proto; None for optional fields that are absent."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [plain(each) if field.message_type is not None else each for each in value]
        elif field.has_presence and not message.HasField(field.name) and field.message_type is None:
            found[field.name] = None
        else:
            found[field.name] = plain(value) if field.message_type is not None else value
    return found
