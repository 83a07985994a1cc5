"""Bodies and answers of the admin API about engines."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from llmgw_coordinator.api.shapes import Shape
from llmgw_proto.locks import lock_problem
from llmgw_proto.records.engine import LOCK_LIMIT, Archive, EngineRelease, EngineSettings, Sha256, Version


class _Selector(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_class: str | None = Field(default=None, min_length=1, max_length=200, description="nodes that have such a GPU")
    labels: dict[str, str] = Field(default={}, description="nodes that carry these labels")


class SetEngineBody(_Selector):
    """A version for all nodes, or for those that gpu_class and labels name; and how it is had, if that is said."""

    version: Version
    release_only: bool = Field(default=False, description="only say how the version is had; what runs where stays as it is")
    lock: str | None = Field(default=None, description="a requirements file with a hash for every package")
    requirements: list[str] = Field(default=[], description="what to resolve without a lock; {version} is filled in")
    overrides: list[str] = Field(default=[], description="requirements that replace those of packages while resolving")
    find_links: list[str] = Field(default=[], description="folders or pages with wheels")
    index: str | None = Field(default=None, description="package index instead of the default one")
    extra_indexes: list[str] = Field(default=[], description="asked before the index")
    archive: Archive | None = Field(default=None, description="llama.cpp: address or path of an archive with its programs")
    sha256: Sha256 | None = Field(default=None, description="of the archive")
    build: bool = Field(default=False, description="llama.cpp: build it on the node")
    build_options: list[str] = Field(default=[], description="more options for cmake")

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.lock is not None:
            if len(self.lock.encode()) > LOCK_LIMIT:
                raise ValueError(f"lock has more than {LOCK_LIMIT} bytes; leave out hashes of platforms that no node has")
            if (problem := lock_problem(self.lock)) is not None:
                raise ValueError(f"lock {problem}")
            if self.requirements or self.overrides:
                raise ValueError("a lock says it all: leave out requirements and overrides, or lock")
        if self.archive is not None and self.sha256 is None:
            raise ValueError("an archive needs its sha256, so that nothing else is unpacked")
        if self.archive is None and self.sha256 is not None and not self.build:
            raise ValueError("sha256 is an archive's; name the archive")
        if (self.archive is not None or self.build) and (self.lock is not None or self.requirements):
            raise ValueError("an archive and packages are two ways: leave out archive and build, or lock and requirements")
        if self.build_options and not self.build:
            raise ValueError("build_options are for build; set it")
        return self

    @property
    def says_how(self) -> bool:
        """Whether more than the version is named."""
        return any(getattr(self, name) for name in ("lock", *_RELEASE))

    def release(self, lock_sha256: str | None) -> EngineRelease:
        return EngineRelease(lock_sha256=lock_sha256, **{name: getattr(self, name) for name in _RELEASE})


_RELEASE = tuple(each for each in EngineRelease.model_fields if each != "lock_sha256")


class UnsetEngineBody(_Selector):
    """What gpu_class and labels name, or how a version is had; with none of them everything about the engine."""

    version: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.version is not None and (self.gpu_class is not None or self.labels):
            raise ValueError("name a version, or nodes by gpu_class and labels, not both")
        return self


class InstallBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Version | None = Field(default=None, description="null: the node's default")
    reinstall: bool = Field(default=False, description="build it again where it is there already")


class NodeEngine(Shape):
    engine: str
    version: str
    state: str = Field(description="installed, installing, failed, wanted (installed when needed) or host (not the agent's)")
    detail: str
    path: str
    bytes: int
    used_by: list[str] = Field(description="shards that run from it")
    lock_sha256: str | None = Field(description="of the lock that it was made from")
    default: bool = Field(description="runs when a model wishes no version")
    origin: str | None = Field(description="whose setting makes it the default: node or fleet")
    installed_at: float | None = Field(description="Unix time")
    last_used_at: float | None = Field(description="Unix time")


class NodeEngines(Shape):
    node: str
    folder: str = Field(description="where they lie on the node")
    engines: list[NodeEngine]


class SilentNode(Shape):
    node: str
    cause: str


class EnginesView(Shape):
    settings: list[EngineSettings]
    nodes: list[NodeEngines]
    unreachable: list[SilentNode]


class EngineStep(Shape):
    fraction: float
    phase: str
    text: str
    result: NodeEngine | None = Field(default=None, description="in the last step")


class RemovedEnginesView(Shape):
    engine: str
    versions: list[str]
    freed_bytes: int


def node_engine(found: Any) -> NodeEngine:
    """From the agent's message."""
    return NodeEngine(
        engine=found.engine,
        version=found.version,
        state=found.state,
        detail=found.detail,
        path=found.path,
        bytes=found.bytes,
        used_by=list(found.used_by),
        lock_sha256=found.lock_sha256 or None,
        default=found.default,
        origin=found.origin or None,
        installed_at=found.installed_at or None,
        last_used_at=found.last_used_at or None,
    )


def engine_step(found: Any) -> EngineStep:
    result = node_engine(found.result) if found.HasField("result") else None
    return EngineStep(fraction=round(found.fraction, 4), phase=found.phase, text=found.text, result=result)
