"""``engines.install`` in the agent's configuration: what is installed on this node, and from where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llmgw_base.config import Section
from llmgw_proto.records.model import parse_bytes

InstallableEngine = Literal["vllm", "sglang"]

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


class EngineInstall(Section):
    """One engine. Without ``lock`` the requirements are resolved once, and the lock that comes of it is kept."""

    version: Annotated[str, AfterValidator(valid_version)]
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
    disk: Annotated[str, AfterValidator(_size)] = Field(default="12GiB", description="free space that building needs")
    timeout_seconds: float = Field(default=3600, gt=0, description="for each step of the installation")
    keep: int = Field(default=1, ge=0, description="environments that nobody uses and that are kept to go back to")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.lock is not None and (self.requirements or self.overrides):
            raise ValueError("a lock says it all: remove requirements and overrides, or remove lock")
        if self.offline and not self.find_links:
            raise ValueError("offline needs find_links: the folder with the wheels")
        return self
