from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetailsRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class ShardDetails(_message.Message):
    __slots__ = ("shard", "replica", "model", "engine", "engine_version", "epoch", "state", "reason", "drained", "history", "attempt", "argv", "environment", "host", "ports", "started_at", "processes", "connections", "requests", "figures", "restarts", "failures", "next_attempt_at", "logs", "measured", "kv_events")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_AT_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    replica: str
    model: str
    engine: str
    engine_version: str
    epoch: int
    state: str
    reason: str
    drained: bool
    history: _containers.RepeatedCompositeFieldContainer[Move]
    attempt: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.RepeatedScalarFieldContainer[str]
    host: str
    ports: _containers.ScalarMap[str, int]
    started_at: float
    processes: _containers.RepeatedCompositeFieldContainer[ProcessFacts]
    connections: int
    requests: int
    figures: _containers.ScalarMap[str, float]
    restarts: int
    failures: int
    next_attempt_at: float
    logs: _containers.RepeatedCompositeFieldContainer[LogFile]
    measured: Measured
    kv_events: bool
    def __init__(self, shard: _Optional[str] = ..., replica: _Optional[str] = ..., model: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., drained: _Optional[bool] = ..., history: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., attempt: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., environment: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., ports: _Optional[_Mapping[str, int]] = ..., started_at: _Optional[float] = ..., processes: _Optional[_Iterable[_Union[ProcessFacts, _Mapping]]] = ..., connections: _Optional[int] = ..., requests: _Optional[int] = ..., figures: _Optional[_Mapping[str, float]] = ..., restarts: _Optional[int] = ..., failures: _Optional[int] = ..., next_attempt_at: _Optional[float] = ..., logs: _Optional[_Iterable[_Union[LogFile, _Mapping]]] = ..., measured: _Optional[_Union[Measured, _Mapping]] = ..., kv_events: _Optional[bool] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("at", "state", "reason")
    AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at: float
    state: str
    reason: str
    def __init__(self, at: _Optional[float] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ProcessFacts(_message.Message):
    __slots__ = ("pid", "parent", "name", "rss_bytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    parent: int
    name: str
    rss_bytes: int
    def __init__(self, pid: _Optional[int] = ..., parent: _Optional[int] = ..., name: _Optional[str] = ..., rss_bytes: _Optional[int] = ...) -> None: ...

class LogFile(_message.Message):
    __slots__ = ("name", "bytes", "modified_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    modified_at: float
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ..., modified_at: _Optional[float] = ...) -> None: ...

class Measured(_message.Message):
    __slots__ = ("install", "fetch", "start_to_listen", "listen_to_ready", "peak_rss_bytes", "peak_gpu_bytes", "tokens_per_second")
    class PeakGpuBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    INSTALL_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    START_TO_LISTEN_FIELD_NUMBER: _ClassVar[int]
    LISTEN_TO_READY_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_GPU_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    install: float
    fetch: float
    start_to_listen: float
    listen_to_ready: float
    peak_rss_bytes: int
    peak_gpu_bytes: _containers.ScalarMap[str, int]
    tokens_per_second: float
    def __init__(self, install: _Optional[float] = ..., fetch: _Optional[float] = ..., start_to_listen: _Optional[float] = ..., listen_to_ready: _Optional[float] = ..., peak_rss_bytes: _Optional[int] = ..., peak_gpu_bytes: _Optional[_Mapping[str, int]] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class DrainState(_message.Message):
    __slots__ = ("shard", "drained", "requests", "connections")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    drained: bool
    requests: int
    connections: int
    def __init__(self, shard: _Optional[str] = ..., drained: _Optional[bool] = ..., requests: _Optional[int] = ..., connections: _Optional[int] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("shard", "drain_seconds")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    drain_seconds: float
    def __init__(self, shard: _Optional[str] = ..., drain_seconds: _Optional[float] = ...) -> None: ...

class RestartState(_message.Message):
    __slots__ = ("shard", "attempt")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    shard: str
    attempt: str
    def __init__(self, shard: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class KvEventsRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class KvDelivery(_message.Message):
    __slots__ = ("source", "batch", "lost")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    source: KvSource
    batch: KvBatch
    lost: KvLost
    def __init__(self, source: _Optional[_Union[KvSource, _Mapping]] = ..., batch: _Optional[_Union[KvBatch, _Mapping]] = ..., lost: _Optional[_Union[KvLost, _Mapping]] = ...) -> None: ...

class KvSource(_message.Message):
    __slots__ = ("shard", "epoch", "attempt", "engine", "number")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard: str
    epoch: int
    attempt: str
    engine: str
    number: int
    def __init__(self, shard: _Optional[str] = ..., epoch: _Optional[int] = ..., attempt: _Optional[str] = ..., engine: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class KvBatch(_message.Message):
    __slots__ = ("seq", "topic", "payload")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    seq: int
    topic: str
    payload: bytes
    def __init__(self, seq: _Optional[int] = ..., topic: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class KvLost(_message.Message):
    __slots__ = ("first", "last", "slow_reader")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SLOW_READER_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    slow_reader: bool
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., slow_reader: _Optional[bool] = ...) -> None: ...

class TelemetryRequest(_message.Message):
    __slots__ = ("every", "count")
    EVERY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    every: float
    count: int
    def __init__(self, every: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class TelemetrySample(_message.Message):
    __slots__ = ("at", "load1", "memory_available_bytes", "gpus", "shards")
    AT_FIELD_NUMBER: _ClassVar[int]
    LOAD1_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    at: float
    load1: float
    memory_available_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuTelemetry]
    shards: _containers.RepeatedCompositeFieldContainer[ShardTelemetry]
    def __init__(self, at: _Optional[float] = ..., load1: _Optional[float] = ..., memory_available_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuTelemetry, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardTelemetry, _Mapping]]] = ...) -> None: ...

class GpuTelemetry(_message.Message):
    __slots__ = ("uuid", "age", "utilization", "memory_used_bytes", "memory_total_bytes", "power", "power_limit", "temperature", "clock_sm", "quarantine")
    UUID_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SM_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    age: float
    utilization: int
    memory_used_bytes: int
    memory_total_bytes: int
    power: float
    power_limit: float
    temperature: int
    clock_sm: int
    quarantine: str
    def __init__(self, uuid: _Optional[str] = ..., age: _Optional[float] = ..., utilization: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., power: _Optional[float] = ..., power_limit: _Optional[float] = ..., temperature: _Optional[int] = ..., clock_sm: _Optional[int] = ..., quarantine: _Optional[str] = ...) -> None: ...

class ShardTelemetry(_message.Message):
    __slots__ = ("shard", "model", "state", "drained", "requests", "tokens_per_second", "rss_bytes", "gpu_bytes")
    class GpuBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: str
    model: str
    state: str
    drained: bool
    requests: int
    tokens_per_second: float
    rss_bytes: int
    gpu_bytes: _containers.ScalarMap[str, int]
    def __init__(self, shard: _Optional[str] = ..., model: _Optional[str] = ..., state: _Optional[str] = ..., drained: _Optional[bool] = ..., requests: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., gpu_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...
