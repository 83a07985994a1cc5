"""What the agent wants to know about an engine. A driver is this and nothing else: no processes, no etcd.

A driver is asked in this order: :meth:`Driver.locate` (is the engine here?), :meth:`Driver.check` (can it run this wish?),
:meth:`Driver.launch` (argv and environment); and while the engine runs: the probe's paths, :meth:`Driver.busy` for draining,
:meth:`Driver.facts` for the endpoint. ``patterns`` turn log lines into causes and remedies when it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llmgw_agent.engines.client import EngineClient
from llmgw_agent.weights import ModelFacts
from llmgw_proto.records import AssignmentRecord


@dataclass(frozen=True, slots=True)
class Located:
    """An engine that can be started on this node."""

    version: str
    detail: str
    argv: tuple[str, ...]
    """How to call it, before any argument."""
    home: Path | None = None
    """The environment that it runs from, if the agent installed it: in VIRTUAL_ENV of its processes, which tells it is used."""


@dataclass(frozen=True, slots=True)
class Host:
    """What an engine may use here. ``memory_limit`` is what the node has for engines, ``memory_free`` what is free now.

    ``gpu_memory``: bytes of each GPU by UUID, as far as they are known.
    """

    memory_limit: int
    memory_free: int
    gpu_memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Available:
    """Weights that are here: the file (the first part of a split one) or folder, and what its headers say if they say it."""

    path: Path
    facts: ModelFacts | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A wish that can be run: where the weights are, and the host memory in bytes that it needs."""

    weights: Path | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Member:
    """One node's part of a replica that spans nodes. ``port`` of rank 0: where the members meet; of a worker that listens
    (:meth:`Driver.worker_listens`): where it does; else 0."""

    node: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Gang:
    """All members of one attempt by rank, and which of them this node is. A worker knows only its own address and the
    head's."""

    rank: int
    attempt: int
    members: tuple[Member, ...]

    @property
    def own(self) -> Member:
        return self.members[self.rank]

    @property
    def head(self) -> Member:
        return self.members[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine has to listen, and the key that it has to demand.

    With a ``gang`` only rank 0 serves HTTP there. A worker that listens does so at ``gang.own``, which has the same port;
    where workers do not listen, they need no port at all. ``fabric``: the environment with which engines of this node find
    those of others, see ``engines.fabric``; what the wish says goes before it.
    """

    host: str
    port: int
    api_key: str
    gang: Gang | None = None
    fabric: Mapping[str, str] = field(default_factory=dict)
    nearest_cards: Mapping[str, str] = field(default_factory=dict)
    """PCI address of each of the wish's GPUs → that of its nearest RDMA card; empty if not all have one."""


@dataclass(frozen=True, slots=True)
class Launch:
    argv: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a running engine says about itself; None where it does not."""

    served_name: str
    max_concurrency: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line in the engine's log that tells why it ended. ``final``: starting it again cannot help."""

    regex: re.Pattern[str]
    cause: str
    remedy: str
    final: bool = False
    port_taken: bool = False


class Driver(Protocol):
    name: str
    patterns: tuple[Pattern, ...]

    def locate(self) -> Located | None:
        """The engine on this node; None if it is not installed. May read files, must not block for long."""
        ...

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        """Whether the wish can be run here. ``weights``: what the agent has fetched for it; None: source says where they lie.

        Raises:
            RejectedError: it cannot, with thing, cause and remedy.
        """
        ...

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        """The command line. Secrets belong into the environment: argv can be read by everyone on the host."""
        ...

    def worker_listens(self, wish: AssignmentRecord) -> bool:
        """Whether in a replica over several nodes a worker opens its own port (and must, before the head starts). The head
        then gives it its part of the weights, so it needs none itself."""
        ...

    def capabilities(self, wish: AssignmentRecord) -> list[str]:
        """What the engine may offer when run with this wish. Unless the wish itself says so, the probe leaves out of chat,
        completions and embeddings what the model turns out not to be made for."""
        ...

    def health_path(self, wish: AssignmentRecord) -> str:
        """Answers 200 without a key when the engine is ready."""
        ...

    async def busy(self, client: EngineClient) -> bool | None:
        """Whether requests are running; None if the engine does not tell.

        Raises:
            EngineSilentError: it does not answer.
        """
        ...

    async def facts(self, client: EngineClient, wish: AssignmentRecord) -> Facts:
        """Raises EngineSilentError if it does not answer."""
        ...
