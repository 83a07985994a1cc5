from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListWeightsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WeightsList(_message.Message):
    __slots__ = ("weights", "folder", "free_bytes", "limit_bytes")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.RepeatedCompositeFieldContainer[StoredWeights]
    folder: str
    free_bytes: int
    limit_bytes: int
    def __init__(self, weights: _Optional[_Iterable[_Union[StoredWeights, _Mapping]]] = ..., folder: _Optional[str] = ..., free_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class StoredWeights(_message.Message):
    __slots__ = ("source", "key", "content", "bytes", "files", "path", "revision", "fetched_at", "last_used_at", "used_by", "facts")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FETCHED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    source: str
    key: str
    content: str
    bytes: int
    files: int
    path: str
    revision: str
    fetched_at: float
    last_used_at: float
    used_by: _containers.RepeatedScalarFieldContainer[str]
    facts: WeightsFacts
    def __init__(self, source: _Optional[str] = ..., key: _Optional[str] = ..., content: _Optional[str] = ..., bytes: _Optional[int] = ..., files: _Optional[int] = ..., path: _Optional[str] = ..., revision: _Optional[str] = ..., fetched_at: _Optional[float] = ..., last_used_at: _Optional[float] = ..., used_by: _Optional[_Iterable[str]] = ..., facts: _Optional[_Union[WeightsFacts, _Mapping]] = ...) -> None: ...

class WeightsFacts(_message.Message):
    __slots__ = ("format", "architecture", "name", "parameters", "quantisation", "dtype", "layers", "heads", "kv_heads", "context_length", "vocabulary", "experts", "weights_bytes", "kv_bytes_per_token")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    format: str
    architecture: str
    name: str
    parameters: int
    quantisation: str
    dtype: str
    layers: int
    heads: int
    kv_heads: int
    context_length: int
    vocabulary: int
    experts: int
    weights_bytes: int
    kv_bytes_per_token: int
    def __init__(self, format: _Optional[str] = ..., architecture: _Optional[str] = ..., name: _Optional[str] = ..., parameters: _Optional[int] = ..., quantisation: _Optional[str] = ..., dtype: _Optional[str] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., context_length: _Optional[int] = ..., vocabulary: _Optional[int] = ..., experts: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ...) -> None: ...

class RemoveWeightsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemovedWeights(_message.Message):
    __slots__ = ("sources", "freed_bytes")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedScalarFieldContainer[str]
    freed_bytes: int
    def __init__(self, sources: _Optional[_Iterable[str]] = ..., freed_bytes: _Optional[int] = ...) -> None: ...

class VerifyWeightsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class VerifyProgress(_message.Message):
    __slots__ = ("source", "bytes_done", "bytes_total", "result")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    source: str
    bytes_done: int
    bytes_total: int
    result: Verified
    def __init__(self, source: _Optional[str] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., result: _Optional[_Union[Verified, _Mapping]] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("files", "wrong")
    FILES_FIELD_NUMBER: _ClassVar[int]
    WRONG_FIELD_NUMBER: _ClassVar[int]
    files: int
    wrong: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, files: _Optional[int] = ..., wrong: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchWeightsRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: str
    def __init__(self, source: _Optional[str] = ...) -> None: ...

class FetchProgress(_message.Message):
    __slots__ = ("phase", "bytes_done", "bytes_total", "bytes_fetched", "bytes_per_second", "place", "waits_for", "path", "facts")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FETCHED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    bytes_done: int
    bytes_total: int
    bytes_fetched: int
    bytes_per_second: float
    place: str
    waits_for: str
    path: str
    facts: WeightsFacts
    def __init__(self, phase: _Optional[str] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., bytes_fetched: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., place: _Optional[str] = ..., waits_for: _Optional[str] = ..., path: _Optional[str] = ..., facts: _Optional[_Union[WeightsFacts, _Mapping]] = ...) -> None: ...
