"""API keys of clients: kept and compared as hashes only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from llmgw_base.config import ConfigError

_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._@/-]{0,99})\s*:\s*([!-~]{1,512})")


class Keys:
    """SHA-256 of a key → the name it was given. The look-up is by hash, so its time tells nothing about the key."""

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = dict(names)

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, key: bytes) -> str | None:
        return self._names.get(sha256(key).digest())


def load(path: Path) -> Keys:
    """Reads a file of ``name:key`` lines; blank lines and lines that begin with ``#`` do not count.

    Raises:
        ConfigError: unreadable, or a line is not of this form; the message names file and line, never the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"api_keys: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"api_keys: {path} is not UTF-8 text") from error
    names: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ConfigError(f"api_keys: {path}, line {number}: write name:key; the key has 1 to 512 visible ASCII characters")
        digest = sha256(match[2].encode()).digest()
        if digest in names:
            raise ConfigError(f"api_keys: {path}, line {number}: the same key stands under {names[digest]!r} already")
        names[digest] = match[1]
    if not names:
        raise ConfigError(f"api_keys: {path} holds no key; add name:key lines, or leave api_keys out to serve every client")
    return Keys(names)
