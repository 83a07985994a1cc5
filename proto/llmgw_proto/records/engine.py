"""What the fleet installs: written by the admin API, followed by every agent."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from llmgw_proto.records.base import Record

#: Engines that agents install.
INSTALLABLE = ("vllm", "sglang", "llamacpp")
#: Bytes of one lock; etcd takes no value above 1.5 MiB, and the admin API no body above 1 MiB.
LOCK_LIMIT = 768 << 10
_SHA256 = re.compile(r"[0-9a-f]{64}")


def valid_sha256(value: str) -> str:
    """In lower case. Raises ValueError."""
    if not _SHA256.fullmatch(value.lower()):
        raise ValueError(f"{value!r} is not a sha256; write the 64 hexadecimal digits that `sha256sum` prints")
    return value.lower()


def valid_archive(value: str) -> str:
    """Raises ValueError."""
    parts = urlsplit(value)
    if value.startswith("/") or (parts.scheme in ("https", "http") and parts.hostname and not parts.fragment):
        return value
    raise ValueError(f"{value!r} is neither an address nor a path; write https://host/file.tar.gz, /path/file or a folder")


#: Becomes a folder's name on nodes.
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$")]
Sha256 = Annotated[str, AfterValidator(valid_sha256)]
Archive = Annotated[str, AfterValidator(valid_archive)]


class EngineRelease(Record):
    """How one version comes to a node. With nothing set, the engine's own package is resolved there and kept."""

    lock_sha256: Sha256 | None = Field(default=None, description="of the lock under engine-locks/<engine>/<version>")
    requirements: list[str] = Field(default=[], description="what to resolve without a lock; {version} is filled in")
    overrides: list[str] = Field(default=[], description="requirements that replace those of packages while resolving")
    find_links: list[str] = Field(default=[], description="folders or pages with wheels")
    index: str | None = Field(default=None, description="package index instead of the default one")
    extra_indexes: list[str] = Field(default=[], description="asked before the index")
    archive: Archive | None = Field(default=None, description="address or path of an archive with the engine's programs")
    sha256: Sha256 | None = Field(default=None, description="of the archive")
    build: bool = Field(default=False, description="build it on the node, from the archive or else the source package")
    build_options: list[str] = Field(default=[], description="more options for cmake")


class EngineOverride(Record):
    """Another version for nodes of a kind: all that is named must fit."""

    version: Version
    gpu_class: str | None = Field(default=None, description="nodes that have such a GPU")
    labels: dict[str, str] = Field(default={}, description="nodes that carry these labels")

    @property
    def selector(self) -> tuple[str | None, tuple[tuple[str, str], ...]]:
        """Two overrides with the same one are the same override."""
        return self.gpu_class, tuple(sorted(self.labels.items()))


class EngineSettings(Record):
    """``engines/<engine>``: for nodes whose own configuration says nothing about the engine."""

    engine: str
    version: Version | None = Field(default=None, description="what runs when a model wishes no version; None: only overrides")
    releases: dict[str, EngineRelease] = Field(default={}, description="by version")
    overrides: list[EngineOverride] = Field(default=[], description="the first that fits a node counts there")
    updated_at: float = Field(default=0, description="Unix time")

    def versions(self) -> set[str]:
        """All that some node may be told to run."""
        return {each for each in (self.version, *(one.version for one in self.overrides)) if each is not None}
