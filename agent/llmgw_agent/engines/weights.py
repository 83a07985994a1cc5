"""Weights on the local file system: where a source points to, and what a GGUF file's first bytes say."""

from __future__ import annotations

import struct
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llmgw_agent.engines.base import Available
from llmgw_agent.errors import RejectedError

GGUF_MAGIC = b"GGUF"
#: Version 1 was used for a few weeks in 2023 and is read by no current engine.
GGUF_VERSIONS = range(2, 8)


def path_of(source: str | None, weights: Available | None) -> Path:
    """Where the weights lie. Raises RejectedError as :func:`local_path`."""
    return weights.path if weights is not None else local_path(source)


def local_path(source: str | None) -> Path:
    """The file that ``file:///path`` or ``/path`` names.

    Raises:
        RejectedError: no source, or one of another kind.
    """
    if not source:
        raise RejectedError("source is missing: say where the weights are, for example file:///srv/models/model.gguf")
    if source.startswith("/"):
        return Path(source)
    parts = urlsplit(source)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Path(unquote(parts.path))
    raise RejectedError(f"source {source!r} is not a local file; write file:///path or /path, and put the file on every node")


def check_gguf(path: Path) -> int:
    """Returns the size in bytes of a readable GGUF file.

    Raises:
        RejectedError: missing, unreadable, or not GGUF.
    """
    try:
        if path.is_dir():
            raise RejectedError(f"weights {path} is a folder, llama.cpp needs one .gguf file; name the file in source")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError:
        raise RejectedError(f"weights {path}: no such file on this node; copy it there or correct source") from None
    except NotADirectoryError:
        raise RejectedError(f"weights {path}: a part of the path is not a folder; correct source") from None
    except PermissionError:
        raise RejectedError(f"weights {path} may not be read by the agent's user; correct its permissions") from None
    except OSError as error:
        raise RejectedError(f"weights {path} cannot be read: {error.strerror}; check the disk or correct source") from error
    if len(head) < 8 or head[:4] != GGUF_MAGIC:
        raise RejectedError(f"weights {path} is not a GGUF file (it starts with {head[:4]!r}); convert it or correct source")
    version = struct.unpack("<I", head[4:])[0]
    if version not in GGUF_VERSIONS:
        raise RejectedError(f"weights {path} is GGUF version {version}, which llama.cpp cannot load here; convert it again")
    return size
