"""The admin token: made at the first start, kept in a file that nobody else may read."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from llmgw_base.config import ConfigError

_SHORTEST = 16


def load_or_create(path: Path) -> str:
    """The token in ``path``; made with mode 600 if the file does not exist.

    Raises:
        ConfigError: others may read the file, it is unreadable or holds no usable token, or it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"token file {path} has mode {mode:o}, so others can read it; run: chmod 600 {path} (and replace the token "
                    "by deleting the file if others may have read it)"
                )
            token = file.read().strip()
    except FileNotFoundError:
        return _create(path)
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be read: {error.strerror}; set token_file") from error
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"token file {path} holds no token of at least {_SHORTEST} characters; delete it to get a new one")
    return token


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    # Written aside and linked into place: of two programs that start at once both end with the same token.
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, token.encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(aside, path)
        except FileExistsError:
            return load_or_create(path)
        finally:
            aside.unlink()
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be made: {error.strerror}; set token_file or state_dir") from error
    return token


class TokenCheck:
    """Compares in constant time, and compares digests so that not even the length is told."""

    def __init__(self, token: str) -> None:
        self._digest = hashlib.sha256(token.encode()).digest()

    def __call__(self, given: str) -> bool:
        return hmac.compare_digest(self._digest, hashlib.sha256(given.encode(errors="surrogateescape")).digest())
