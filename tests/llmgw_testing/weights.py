"""Shorthands for tests of the weight store: settings that allow loopback, data, and small model files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from llmgw_agent.weights import (
    DigestMismatchError,
    Peer,
    PeerSource,
    Turn,
    WeightsError,
    WeightsSettings,
    WeightStore,
)
from llmgw_agent.weights.guard import Resolve, system_resolve
from llmgw_base.clock import Clock, SystemClock

MIB = 1 << 20


class Known:
    """A PeerSource with fixed peers, each asked once for a file, that remembers who gave wrong bytes."""

    def __init__(self, *urls: str, tls: ssl.SSLContext | None = None) -> None:
        self.list = [Peer(each, {"Authorization": "Bearer t"}, tls) for each in urls]
        self.left_for: set[tuple[str, str]] = set()
        self.gone: list[str] = []
        self.waits_for = ""

    @contextlib.asynccontextmanager
    async def turn(self, content: str, done: Callable[[], int]) -> AsyncIterator[Turn]:
        yield self

    def changed(self) -> None:
        """Nobody is told."""

    async def peers(self, digest: str) -> Sequence[Peer]:
        return [each for each in self.list if (each.base_url, digest) not in self.left_for]

    def left(self, peer: Peer, digest: str, error: WeightsError) -> None:
        self.left_for.add((peer.base_url, digest))
        if isinstance(error, DigestMismatchError):
            self.gone.append(peer.base_url)


def data(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def settings(**changes: object) -> WeightsSettings:
    """Loopback allowed, no reserve, short waits."""
    base: dict[str, object] = {
        "allow_networks": ["127.0.0.0/8"],
        "reserve_bytes": 0,
        "connect_seconds": 5,
        "idle_seconds": 20,
        "attempts": 3,
    }
    return WeightsSettings.model_validate(base | changes)


@contextlib.asynccontextmanager
async def opened(
    root: Path,
    *,
    clock: Clock | None = None,
    peers: PeerSource | None = None,
    resolve: Resolve = system_resolve,
    **changes: object,
) -> AsyncIterator[WeightStore]:
    store = WeightStore(root, clock=clock or SystemClock(), settings=settings(**changes), peers=peers, resolve=resolve)
    async with store:
        yield store


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    values: dict[str, object] | None = None, tensors: dict[str, tuple[tuple[int, ...], int]] | None = None, padding: int = 0
) -> bytes:
    """A GGUF file with these keys (int, float, str, bool, lists of int or str) and tensors (shape and ggml type)."""
    keys = {"general.architecture": "llama"} if values is None else values
    shapes = {"token_embd.weight": ((8, 16), 0)} if tensors is None else tensors
    out = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    for key, value in keys.items():
        out += _text(key) + _value(value)
    for name, (shape, kind) in shapes.items():
        out += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", each) for each in shape)
        out += struct.pack("<IQ", kind, 0)
    return out + bytes(padding)


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value) if value >= 1 << 32 else struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list() if value and isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(each) for each in value)
        case list():
            return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    raise TypeError(f"no GGUF value: {value!r}")


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A safetensors file with these tensors: dtype, shape, bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(at)
