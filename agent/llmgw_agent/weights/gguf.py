"""Reads the header of a GGUF file, forward only and in bounded memory, from a file or from a download's first bytes.

Long texts and arrays (vocabularies of hundreds of thousands of words) are passed over; only their length is kept. Both byte
orders and versions 1 to 3 are read, unknown keys are kept, and nonsense ends in a MetadataError that says where.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .errors import MetadataError
from .gguf_names import tensor_type

MAGIC: Final = b"GGUF"
_LONGEST_KEY: Final = 1 << 16
_LONGEST_TEXT: Final = 64 << 10  # of a text that is kept
_LONGEST_ARRAY: Final = 4096  # of an array that is kept
_MOST_KEYS: Final = 1 << 16
_MOST_TENSORS: Final = 1 << 20
_LARGEST_HEADER: Final = 128 << 20
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True)
class Skipped:
    """A value that is not kept: a text of ``length`` bytes or an array of ``length`` elements."""

    length: int


Value = int | float | bool | str | list["int | float | bool"] | Skipped


@dataclass
class GgufHeader:
    version: int
    values: dict[str, Value] = field(default_factory=dict)
    tensors: int = 0
    elements: int = 0
    tensor_types: dict[str, int] = field(default_factory=dict)  # how many elements have which type

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def numbers(self, key: str) -> list[int] | None:
        """A value that may be one number for all layers or one for each."""
        value = self.values.get(key)
        if isinstance(value, list):
            return [int(each) for each in value if isinstance(each, int)] if value else None
        number = self.number(key)
        return None if number is None else [number]

    def length(self, key: str) -> int | None:
        value = self.values.get(key)
        if isinstance(value, list):
            return len(value)
        return value.length if isinstance(value, Skipped) else None


class _Reader:
    """``read(n)`` gives up to n bytes, and none at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes of earlier buffers
        self.order = "<"

    @property
    def position(self) -> int:
        return self._before + self._at

    def _fill(self, size: int) -> None:
        """Makes ``size`` bytes be in the buffer."""
        while len(self._buffer) - self._at < size:
            if self.position > _LARGEST_HEADER:
                raise MetadataError(f"the header does not end within {_LARGEST_HEADER} bytes")
            block = self._read(1 << 18)
            if not block:
                raise MetadataError(f"the file ends inside its header, at byte {self._before + len(self._buffer)}")
            self._before += self._at
            self._buffer = self._buffer[self._at :] + block
            self._at = 0

    def take(self, size: int) -> bytes:
        if len(self._buffer) - self._at < size:
            self._fill(size)
        start = self._at
        self._at = start + size
        return self._buffer[start : self._at]

    def skip(self, size: int) -> None:
        if size > _LARGEST_HEADER:
            raise MetadataError(f"a value of {size} bytes at byte {self.position} cannot be right")
        while size > (have := len(self._buffer) - self._at):
            self._at += have
            size -= have
            self._fill(1)
        self._at += size

    def number(self, code: str) -> int:
        value: int = struct.unpack(self.order + code, self.take(struct.calcsize("<" + code)))[0]
        return value


def read_gguf(read: Callable[[int], bytes]) -> GgufHeader:
    """``read(n)`` gives the next up to n bytes of the file, none at its end. Raises MetadataError and what ``read`` raises."""
    reader = _Reader(read)
    if reader.take(4) != MAGIC:
        raise MetadataError("this is not a GGUF file (it does not begin with GGUF)")
    version = reader.number("I")
    if version and version & 0xFFFF == 0:
        reader.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if not 1 <= version <= 3:
        raise MetadataError(f"GGUF version {version} is not known; versions 1 to 3 are")
    size = "I" if version == 1 else "Q"
    tensors, keys = reader.number(size), reader.number(size)
    if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
        raise MetadataError(f"the header promises {tensors} tensors and {keys} keys, which cannot be right")
    header = GgufHeader(version, tensors=tensors)
    for _ in range(keys):
        key = _key(reader, size)
        header.values[key] = _value(reader, reader.number("I"), size, 0)
    for _ in range(tensors):
        _key(reader, size)
        _tensor(reader, header, size)
    return header


def _key(reader: _Reader, size: str) -> str:
    length = reader.number(size)
    if length > _LONGEST_KEY:
        raise MetadataError(f"a name of {length} bytes at byte {reader.position} cannot be right")
    return reader.take(length).decode("utf-8", "replace")


def _value(reader: _Reader, kind: int, size: str, depth: int) -> Value:
    if kind in _SCALARS:
        code = reader.order + _SCALARS[kind]
        value: int | float | bool = struct.unpack(code, reader.take(struct.calcsize(code)))[0]
        return value
    if kind == _STRING:
        length = reader.number(size)
        if length > _LONGEST_TEXT:
            reader.skip(length)
            return Skipped(length)
        return reader.take(length).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(reader, size, depth)
    raise MetadataError(f"a value at byte {reader.position} has the unknown type {kind}")


def _array(reader: _Reader, size: str, depth: int) -> Value:
    kind = reader.number("I")
    length = reader.number(size)
    if kind in _SCALARS:
        code = _SCALARS[kind]
        width = struct.calcsize("<" + code)
        if length > _LONGEST_ARRAY:
            reader.skip(length * width)
            return Skipped(length)
        return list(struct.unpack(f"{reader.order}{length}{code}", reader.take(length * width)))
    if kind not in (_STRING, _ARRAY) or depth >= 3:
        raise MetadataError(f"an array at byte {reader.position} has elements of the unknown type {kind}")
    # Each element is at least its own length field, so a count that lies runs into the end of the file.
    for _ in range(length):
        if kind == _STRING:
            reader.skip(reader.number(size))
        else:
            _array(reader, size, depth + 1)
    return Skipped(length)


def _tensor(reader: _Reader, header: GgufHeader, size: str) -> None:
    dimensions = reader.number("I")
    if dimensions > 8:
        raise MetadataError(f"a tensor with {dimensions} dimensions at byte {reader.position} cannot be right")
    elements = math.prod(reader.number(size) for _ in range(dimensions))
    name = tensor_type(reader.number("I"))
    reader.number("Q")  # where its data is
    header.elements += elements
    header.tensor_types[name] = header.tensor_types.get(name, 0) + elements
