"""What the operator wishes: models."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from llmgw_proto.records.base import Record
from llmgw_proto.sources import KNOWN_SCHEMES, SourceError, parse_source

EngineName = Literal["llamacpp", "vllm", "sglang", "command"]

#: What an endpoint can be asked for, named after the API family.
Capability = Literal[
    "chat",
    "completions",
    "embeddings",
    "responses",
    "rerank",
    "score",
    "pooling",
    "classify",
    "tokenize",
    "transcriptions",
    "translations",
    "speech",
    "images",
    "moderations",
    "messages",
    "realtime",
]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str) -> int:
    """Reads a size: ``"512MiB"``, ``"16 GB"``, ``"1.5G"`` (single letters are binary, as in systemd), ``"1048576"``.

    Raises:
        ValueError: not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 512MiB, 16GB or a number of bytes")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if size > 2**60:
        raise ValueError(f"{text[:20]!r} is more than an exbibyte; write the size that is meant")
    return int(size)


def _size(value: str) -> str:
    parse_bytes(value)
    return value


Size = Annotated[str, AfterValidator(_size)]

_NAME = re.compile(r"[^\s/\x00-\x1f\x7f][^\s\x00-\x1f\x7f]{0,199}")


class ReplicaRange(Record):
    """How many replicas; ``max`` is where automatic scaling ends and equals ``min`` unless set."""

    min: int = Field(default=1, ge=0, le=10_000)
    max: int | None = Field(default=None, ge=0, le=10_000)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class RoutingSpec(Record):
    """How routers choose among the model's replicas; None takes the router's default."""

    policy: str | None = None


_VERSION = r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$"


class VersionOverride(Record):
    """Another version of the engine on some of the nodes: those with these labels, those with GPUs of this class, or both."""

    version: str = Field(pattern=_VERSION)
    node_selector: dict[str, str] = Field(default={}, description="labels that the node carries")
    gpu_class: str | None = Field(default=None, min_length=1, description="class of the replica's GPUs there")


class Profile(Record):
    """One way to run the model: an engine and what it needs, on one node or on several at once."""

    engine: str
    version: str | None = Field(
        default=None,
        pattern=_VERSION,
        description="of the engine, which agents install; None takes the one that the agent or the fleet is set to",
    )
    versions: list[VersionOverride] = Field(
        default=[], description="other versions for some nodes; the first that matches the node counts, before version"
    )
    nodes: int = Field(default=1, ge=1, le=64, description="nodes that one replica spans, taken all at once or not at all")
    gpus: int = Field(default=0, ge=0, le=1024, description="GPUs per replica, on each of its nodes")
    gpu_class: str | None = Field(
        default=None, min_length=1, description="class of the GPUs, for example H100-80GB; None takes any, all of one class"
    )
    memory: Size | None = Field(
        default=None,
        description="host memory per replica, on each of its nodes; without it the agent judges by the size of the weights",
    )
    args: list[str] = Field(default=[], description="more arguments for the engine, checked against reserved flags")
    env: dict[str, str] = {}
    command: list[str] = Field(
        default=[],
        description="engine 'command' only: argv template; {host} {port} {model} {name} {api_key} are filled in",
    )
    health_path: str = Field(default="/health", pattern=r"^/", description="engine 'command' only")
    capabilities: list[str] | None = Field(default=None, description="None takes what the engine is known to offer")
    node_selector: dict[str, str] = Field(default={}, description="labels that the node must carry")

    @model_validator(mode="after")
    def _command_matches_engine(self) -> Self:
        if self.engine == "command" and not self.command:
            raise ValueError("engine 'command' needs command: the program and its arguments as a list")
        if self.engine != "command" and self.command:
            raise ValueError(f"command is only for engine 'command'; give {self.engine} more arguments with args")
        return self


class ModelSpec(Record):
    """``models/<name>``: written by the admin API."""

    name: str = Field(description="the name that clients send as model; may contain slashes")
    source: str | None = Field(
        default=None,
        description="where the weights are: /path or file:///path on each node, hf:org/repo[@revision][:file], "
        "or https://host/file[#sha256=...]",
    )
    profiles: list[Profile] = Field(min_length=1)
    replicas: ReplicaRange = ReplicaRange()
    routing: RoutingSpec = RoutingSpec()
    drain_seconds: float = Field(default=30, ge=0, le=86_400, description="how long a stopping replica may finish requests")
    generation: int = Field(default=0, description="raised by the admin API with each change; not for the user to set")

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r}: use 1 to 200 characters without blanks or control characters, not starting with '/'"
            )
        if self.source is None and any(profile.engine != "command" for profile in self.profiles):
            raise ValueError(
                "source is missing: say where the weights are, for example file:///srv/models/model.gguf, "
                "hf:org/repo:model.gguf or https://host/model.gguf"
            )
        return self


class StrictVersionOverride(VersionOverride):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _for_some_nodes(self) -> Self:
        if not self.node_selector and self.gpu_class is None:
            raise ValueError("says for no node in particular; give node_selector or gpu_class, or set the profile's version")
        return self


class StrictProfile(Profile):
    """A profile as a user may write it: an unknown field, engine or capability is an error, not a newer version's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineName
    versions: list[StrictVersionOverride] = []  # type: ignore[assignment]  # narrower, and the record is frozen
    capabilities: list[Capability] | None = None  # type: ignore[assignment]  # narrower, and the record is frozen

    @model_validator(mode="after")
    def _version_of_what_is_installed(self) -> Self:
        for field, value in (("version", self.version), ("versions", self.versions)):
            if value and self.engine == "command":
                raise ValueError(f"{field} is for engines that agents install; a command runs as it is found")
        return self

    @model_validator(mode="after")
    def _nodes_and_gpus_go_together(self) -> Self:
        if self.nodes > 1 and self.engine == "command":
            raise ValueError("nodes: engine 'command' runs on one node; leave it out, or use vllm, sglang or llamacpp")
        if self.gpu_class is not None and self.gpus == 0:
            raise ValueError("gpu_class says which GPUs, and gpus how many are needed; set gpus too")
        return self


class StrictReplicaRange(ReplicaRange):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StrictRoutingSpec(RoutingSpec):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StrictModelSpec(ModelSpec):
    """A model as a user may write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profiles: list[StrictProfile] = Field(min_length=1)  # type: ignore[assignment]  # narrower, and the record is frozen
    replicas: StrictReplicaRange = StrictReplicaRange()
    routing: StrictRoutingSpec = StrictRoutingSpec()

    @model_validator(mode="after")
    def _source_is_readable(self) -> Self:
        # A program of engine 'command' may understand sources of its own kind.
        own = all(profile.engine == "command" for profile in self.profiles)
        if self.source is not None and not (own and not self.source.startswith(KNOWN_SCHEMES)):
            try:
                parse_source(self.source)
            except SourceError as error:
                raise ValueError(str(error)) from None
        return self

    def record(self) -> ModelSpec:
        """The same as the record that is stored."""
        return ModelSpec.model_validate(self.model_dump())
