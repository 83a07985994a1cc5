"""Digests that promise a file's content: SHA-256, and the SHA-1 of a git blob as hubs give it for small files."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from _hashlib import HASH

Kind = Literal["sha256", "git"]
_LENGTH = {"sha256": 64, "git": 40}


class DigestError(ValueError):
    """Not written as a digest is."""


class Digest(NamedTuple):
    """``kind`` "sha256" (of the bytes) or "git" (SHA-1 of ``blob <size>\\0`` and the bytes); ``hex`` in lower case."""

    kind: Kind
    hex: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.hex}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``sha256:<hex>`` or ``git:<hex>``. Raises DigestError."""
        kind, _, value = text.partition(":")
        value = value.lower()
        length = _LENGTH.get(kind)
        if length is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", value):
            raise DigestError(f"{text!r} is not a digest; write sha256: and 64 hexadecimal digits")
        return cls("git" if kind == "git" else "sha256", value)

    def hasher(self, size: int) -> HASH:
        """A fresh hash object that ends in this digest when ``size`` right bytes went through it."""
        return new_hasher(self.kind, size)


def new_hasher(kind: Kind, size: int) -> HASH:
    if kind == "git":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()
