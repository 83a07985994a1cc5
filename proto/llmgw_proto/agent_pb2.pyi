from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LogsRequest(_message.Message):
    __slots__ = ("shard", "tail", "follow", "since", "grep", "file")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    GREP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    shard: str
    tail: int
    follow: bool
    since: float
    grep: str
    file: str
    def __init__(self, shard: _Optional[str] = ..., tail: _Optional[int] = ..., follow: _Optional[bool] = ..., since: _Optional[float] = ..., grep: _Optional[str] = ..., file: _Optional[str] = ...) -> None: ...

class LogsChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("subject", "reason")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reason: str
    def __init__(self, subject: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LiftRequest(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("subject", "quarantine")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    quarantine: str
    def __init__(self, subject: _Optional[str] = ..., quarantine: _Optional[str] = ...) -> None: ...

class SetPowerRequest(_message.Message):
    __slots__ = ("gpu", "watts")
    GPU_FIELD_NUMBER: _ClassVar[int]
    WATTS_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    watts: float
    def __init__(self, gpu: _Optional[str] = ..., watts: _Optional[float] = ...) -> None: ...

class PowerLimit(_message.Message):
    __slots__ = ("gpu", "watts")
    GPU_FIELD_NUMBER: _ClassVar[int]
    WATTS_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    watts: float
    def __init__(self, gpu: _Optional[str] = ..., watts: _Optional[float] = ...) -> None: ...

class BandwidthRequest(_message.Message):
    __slots__ = ("peer", "force", "seconds")
    PEER_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    force: bool
    seconds: float
    def __init__(self, peer: _Optional[str] = ..., force: _Optional[bool] = ..., seconds: _Optional[float] = ...) -> None: ...

class BandwidthResult(_message.Message):
    __slots__ = ("method", "gigabits_per_second", "bytes", "seconds", "streams", "port", "peer_port", "note")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    GIGABITS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PEER_PORT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    method: str
    gigabits_per_second: float
    bytes: int
    seconds: float
    streams: int
    port: str
    peer_port: str
    note: str
    def __init__(self, method: _Optional[str] = ..., gigabits_per_second: _Optional[float] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., streams: _Optional[int] = ..., port: _Optional[str] = ..., peer_port: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class ServeBandwidthRequest(_message.Message):
    __slots__ = ("hca", "port", "gid_index", "numa", "seconds", "streams", "token", "force")
    HCA_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GID_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    hca: str
    port: int
    gid_index: int
    numa: int
    seconds: float
    streams: int
    token: str
    force: bool
    def __init__(self, hca: _Optional[str] = ..., port: _Optional[int] = ..., gid_index: _Optional[int] = ..., numa: _Optional[int] = ..., seconds: _Optional[float] = ..., streams: _Optional[int] = ..., token: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class BandwidthServer(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...
