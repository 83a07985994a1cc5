from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListEnginesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineList(_message.Message):
    __slots__ = ("engines", "folder")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[NodeEngine]
    folder: str
    def __init__(self, engines: _Optional[_Iterable[_Union[NodeEngine, _Mapping]]] = ..., folder: _Optional[str] = ...) -> None: ...

class NodeEngine(_message.Message):
    __slots__ = ("engine", "version", "state", "detail", "path", "bytes", "used_by", "lock_sha256", "default", "origin", "installed_at", "last_used_at")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    LOCK_SHA256_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    state: str
    detail: str
    path: str
    bytes: int
    used_by: _containers.RepeatedScalarFieldContainer[str]
    lock_sha256: str
    default: bool
    origin: str
    installed_at: float
    last_used_at: float
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., path: _Optional[str] = ..., bytes: _Optional[int] = ..., used_by: _Optional[_Iterable[str]] = ..., lock_sha256: _Optional[str] = ..., default: _Optional[bool] = ..., origin: _Optional[str] = ..., installed_at: _Optional[float] = ..., last_used_at: _Optional[float] = ...) -> None: ...

class InstallEngineRequest(_message.Message):
    __slots__ = ("engine", "version", "reinstall")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REINSTALL_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    reinstall: bool
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., reinstall: _Optional[bool] = ...) -> None: ...

class EngineProgress(_message.Message):
    __slots__ = ("fraction", "phase", "text", "result")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    phase: str
    text: str
    result: NodeEngine
    def __init__(self, fraction: _Optional[float] = ..., phase: _Optional[str] = ..., text: _Optional[str] = ..., result: _Optional[_Union[NodeEngine, _Mapping]] = ...) -> None: ...

class RemoveEngineRequest(_message.Message):
    __slots__ = ("engine", "version")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class RemovedEngines(_message.Message):
    __slots__ = ("versions", "freed_bytes")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[str]
    freed_bytes: int
    def __init__(self, versions: _Optional[_Iterable[str]] = ..., freed_bytes: _Optional[int] = ...) -> None: ...
