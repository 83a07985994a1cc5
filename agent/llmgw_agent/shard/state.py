"""What the agent keeps on disk about a shard, so that it knows its engine again after any end of its own.

One JSON file per shard, replaced atomically. ``process`` is None before the spawn and while nothing runs; ``attempt`` is
written before the spawn, so that a process which carries it is known to be ours even if the agent died in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmgw_agent.errors import StateFileError
from llmgw_agent.process.home import NOWHERE, Home
from llmgw_agent.process.identity import Identity
from llmgw_proto.records import AssignmentRecord, EndpointRecord, GangState, Timings

VERSION = 1
logger = logging.getLogger(__name__)


class _Saved(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class SavedProcess(_Saved):
    pid: int
    start_ticks: int
    boot_id: str
    started_at: float
    unit: str = ""
    cgroup: str = ""

    @classmethod
    def of(cls, identity: Identity, started_at: float, home: Home = NOWHERE) -> Self:
        return cls(
            pid=identity.pid,
            start_ticks=identity.start_ticks,
            boot_id=identity.boot_id,
            started_at=started_at,
            unit=home.unit,
            cgroup=home.cgroup,
        )

    @property
    def home(self) -> Home:
        return Home(self.unit, self.cgroup)


class SavedAttempt(_Saved):
    """One start of the engine; ``wish`` is the fingerprint of what it was started with."""

    id: str
    wish: str
    host: str
    port: int
    engine_version: str = ""
    memory_bytes: int = 0
    argv: tuple[str, ...] = ()
    """As it may be shown: without secrets."""
    environment: tuple[str, ...] = ()
    """Names of the variables that were set for it."""
    kv_events: bool = False
    """Whether it was told to publish KV-cache events."""


class SavedShard(_Saved):
    version: int = VERSION
    node: str
    assignment: AssignmentRecord
    api_key: str
    attempt: SavedAttempt | None = None
    process: SavedProcess | None = None
    endpoint: EndpointRecord | None = None
    finishing: bool = False
    failures: int = 0
    restarts: int = 0
    timings: Timings = Timings()
    drained: bool = False
    """An operator keeps it out of routing."""
    peak_gpu_bytes: dict[str, int] = Field(default_factory=dict)
    tokens_per_second: float | None = None
    gang: GangState | None = None
    """What this node said last of its part in a replica over several nodes."""
    meeting_port: int = 0
    """Where such a replica's members meet, if that is here; 0: nowhere."""


def fingerprint(wish: AssignmentRecord) -> str:
    """Equal for two wishes if and only if the same engine process fulfils both."""
    parts = [
        wish.replica,
        wish.model,
        wish.epoch,
        wish.engine,
        wish.version,
        wish.source,
        wish.args,
        sorted(wish.env.items()),
        wish.command,
        wish.gpus,
        wish.role,
        wish.rank,
        wish.peers,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def file_name(shard: str) -> str:
    """A file or folder name for a shard; :func:`urllib.parse.unquote` gives the shard back."""
    name = quote(shard, safe="")
    return "%2E" + name[1:] if name.startswith(".") else name


class StateDir:
    """The folder of state files. All methods raise OSError when the disk fails, except where they say otherwise."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "shards"
        self._finished = root / "finished.json"
        self._cluster = root / "cluster"
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, shard: str) -> Path:
        return self._folder / f"{file_name(shard)}.json"

    def save(self, saved: SavedShard) -> None:
        write_atomically(self.path(saved.assignment.shard), saved.model_dump_json(exclude_none=True).encode())

    def remove(self, shard: str) -> None:
        self.path(shard).unlink(missing_ok=True)

    def load_all(self) -> dict[str, SavedShard]:
        """Every readable state file by shard. Damaged ones are set aside as ``*.damaged`` and reported in the log."""
        found = {}
        for path in sorted(self._folder.glob("*.json")):
            shard = unquote(path.stem)
            try:
                found[shard] = read_state(path, shard)
            except StateFileError as error:
                aside = path.with_suffix(".damaged")
                logger.error("state file set aside", extra={"fields": {"file": str(path), "cause": str(error)}})  # noqa: TRY400
                path.replace(aside)
        return found

    # --- epochs that have ended ---------------------------------------------------------------------------------------

    def finished(self) -> dict[str, int]:
        """The last epoch that ended, by shard; empty if the file is lost."""
        try:
            data = json.loads(self._finished.read_bytes())
            return {str(shard): int(epoch) for shard, epoch in data.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def finish(self, shard: str, epoch: int, limit: int = 2000) -> None:
        """Remembers an ended epoch; the oldest beyond ``limit`` shards are forgotten."""
        known = self.finished()
        known[shard] = max(epoch, known.pop(shard, 0))
        kept = dict(list(known.items())[-limit:])
        write_atomically(self._finished, json.dumps(kept).encode())

    # --- which cluster this agent belongs to --------------------------------------------------------------------------

    @property
    def cluster_file(self) -> Path:
        return self._cluster

    def cluster_id(self) -> str | None:
        try:
            return self._cluster.read_text().strip() or None
        except OSError:
            return None

    def set_cluster_id(self, cluster_id: str) -> None:
        write_atomically(self._cluster, cluster_id.encode() + b"\n")


def read_state(path: Path, shard: str) -> SavedShard:
    """Raises StateFileError for anything but a whole state file of this shard and version."""
    try:
        saved = SavedShard.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StateFileError(f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise StateFileError(f"not a whole state file: {error.errors(include_url=False)[0]['msg']}") from error
    if saved.version > VERSION:
        raise StateFileError(f"written by a newer agent (layout {saved.version}, this one reads {VERSION})")
    if saved.assignment.shard != shard:
        raise StateFileError(f"holds shard {saved.assignment.shard}, not {shard}")
    return saved


def write_atomically(path: Path, data: bytes) -> None:
    """The file is wholly old or wholly new after a crash at any moment; the new one is readable by its owner only."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)  # noqa: PTH105 - the name from mkstemp is a str
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
