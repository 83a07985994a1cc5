"""``engines.install`` in the agent's configuration: what is installed on this node, and from where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llmgw_base.config import Section
from llmgw_proto.records.engine import Archive, Sha256
from llmgw_proto.records.model import parse_bytes

InstallableEngine = Literal["vllm", "sglang", "llamacpp"]

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")


def valid_version(value: str) -> str:
    """A version becomes a folder's name.

    Raises:
        ValueError: it cannot.
    """
    if not _VERSION.fullmatch(value):
        raise ValueError(f"{value!r} is not a version; write for example 0.11.2")
    return value


def _size(value: str) -> str:
    parse_bytes(value)
    return value


Version = Annotated[str, AfterValidator(valid_version)]


class BuildSettings(Section):
    """How a program is built from its source with cmake."""

    options: list[str] = Field(default=[], description="more options for cmake, such as -DGGML_CUDA=ON; they come last")
    jobs: int | None = Field(
        default=None, ge=1, le=256, description="compilers at a time; None: one for each 2 GB of memory and core"
    )


class VersionOverride(Section):
    """Another version for nodes of a kind. All that is named must fit the node."""

    version: Version
    gpu_class: str | None = Field(default=None, description="nodes that have such a GPU, for example H100-80GB")
    labels: dict[str, str] = Field(default={}, description="nodes that carry these labels")
    lock: Path | None = None
    archive: Archive | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _narrow(self) -> Self:
        if self.gpu_class is None and not self.labels:
            raise ValueError("it fits every node; name gpu_class or labels, or change version itself")
        _check_archive(self.archive, self.sha256, folder_of_source=False)
        return self


class EngineInstall(Section):
    """One engine. Without ``lock`` the requirements are resolved once, and the lock that comes of it is kept."""

    version: Version
    lock: Path | None = Field(default=None, description="requirements file with a hash for every package, of this version")
    requirements: list[str] = Field(
        default=[], description="what to resolve when there is no lock; {version} is filled in. None: the engine's package"
    )
    overrides: list[str] = Field(default=[], description="requirements that replace those of packages while resolving")
    find_links: list[str] = Field(default=[], description="folders or pages with wheels; with offline the bundle")
    index: str | None = Field(default=None, description="package index instead of the default one")
    extra_indexes: list[str] = Field(default=[], description="asked before the index, for example for builds of torch")
    offline: bool = Field(default=False, description="take wheels from find_links only and never ask the network")
    python: str | None = Field(default=None, description="interpreter to build with; None: the agent's own")
    archive: Archive | None = Field(
        default=None, description="address or path of an archive with the programs, or a folder with archives; not packages"
    )
    sha256: Sha256 | None = Field(default=None, description="of the archive")
    build: BuildSettings | None = Field(default=None, description="the archive is source code, to be built here")
    version_overrides: list[VersionOverride] = Field(
        default=[], description="other versions by kind of node; the first that fits"
    )
    disk: Annotated[str, AfterValidator(_size)] | None = Field(
        default=None, description="free space that building needs; None: by engine"
    )
    timeout_seconds: float = Field(default=3600, gt=0, description="for each step of the installation")
    keep: int = Field(default=1, ge=0, description="environments that nobody uses and that are kept to go back to")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.lock is not None and (self.requirements or self.overrides):
            raise ValueError("a lock says it all: remove requirements and overrides, or remove lock")
        if self.offline and not self.find_links and self.archive is None:
            raise ValueError("offline needs find_links: the folder with the wheels")
        _check_archive(self.archive, self.sha256, folder_of_source=self.build is not None)
        if self.archive is not None and (self.lock is not None or self.requirements):
            raise ValueError("an archive and packages are two ways: remove archive, or remove lock and requirements")
        return self


def _check_archive(archive: str | None, sha256: str | None, *, folder_of_source: bool) -> None:
    if archive is not None and sha256 is None:
        raise ValueError("an archive needs its sha256, so that nothing else is unpacked")
    if archive is None and sha256 is not None and not folder_of_source:
        raise ValueError("sha256 is an archive's; name the archive")


def _programs(install: dict[InstallableEngine, EngineInstall]) -> dict[InstallableEngine, EngineInstall]:
    for engine, settings in install.items():
        if engine != "llamacpp" and (settings.archive is not None or settings.build is not None):
            raise ValueError(f"{engine} is made of packages, not of programs: remove its archive and build")
    return install


InstallSettings = Annotated[dict[InstallableEngine, EngineInstall], AfterValidator(_programs)]
