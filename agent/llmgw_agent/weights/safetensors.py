"""Reads the header of a safetensors file and a model's ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import MetadataError

_LARGEST_HEADER: Final = 100 << 20  # the format's own limit
LARGEST_CONFIG: Final = 16 << 20


@dataclass
class SafetensorsHeader:
    """``dtypes``: how many elements have which type."""

    dtypes: dict[str, int] = field(default_factory=dict)
    data_bytes: int = 0


def read_safetensors(read: Callable[[int], bytes]) -> SafetensorsHeader:
    """``read(n)`` gives the next up to n bytes, none at the end. Raises MetadataError and what ``read`` raises."""
    length = int.from_bytes(_exactly(read, 8), "little")
    if length > _LARGEST_HEADER:
        raise MetadataError(f"this is not a safetensors file (its header would have {length} bytes)")
    content = json_object(_exactly(read, length), "the safetensors header")
    header = SafetensorsHeader()
    for name, tensor in content.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (start, end) = str(tensor["dtype"]), [int(each) for each in tensor["shape"]], tensor["data_offsets"]
            elements = math.prod(shape)
            wrong = min(shape, default=0) < 0 or not 0 <= int(start) <= int(end)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MetadataError(f"the safetensors header is wrong at {name[:100]!r}: {error}") from None
        if wrong:
            raise MetadataError(f"the safetensors header is wrong at {name[:100]!r}: a negative size")
        header.dtypes[dtype] = header.dtypes.get(dtype, 0) + elements
        header.data_bytes = max(header.data_bytes, int(end))
    return header


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Raises MetadataError."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{what} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise MetadataError(f"{what} is not a JSON object")
    return content


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        block = read(min(size, 1 << 20))
        if not block:
            raise MetadataError("the file ends inside its header")
        parts.append(block)
        size -= len(block)
    return b"".join(parts)
