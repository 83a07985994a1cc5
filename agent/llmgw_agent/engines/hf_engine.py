"""What vLLM and SGLang have in common: weights as the hub has them, split over GPUs and nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from llmgw_agent.engines.base import Available, Checked, Gang, Host, Launch, Located, Member, Place
from llmgw_agent.engines.environment import EnvironmentEngine, fraction_of, given, value_of
from llmgw_agent.engines.fabric import as_ip
from llmgw_agent.engines.gpu_memory import check_gpu_memory
from llmgw_agent.engines.hf_folder import HfFolder, check_hf
from llmgw_agent.engines.split import check_split, split_of
from llmgw_agent.engines.weights import path_of
from llmgw_agent.errors import RejectedError
from llmgw_proto.engines import check_args, check_env
from llmgw_proto.records import AssignmentRecord


class HfEngine(EnvironmentEngine, ABC):
    title: ClassVar[str]
    """As people write the name."""
    memory_flag: ClassVar[str]
    """Sets which part of a GPU's memory is taken."""
    memory_most: ClassVar[float]
    """More is not taken unless that flag says so."""
    smaller_on_gpus: ClassVar[tuple[str, ...]]
    """Flags with which GPUs hold less than the files do."""

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        problem = check_args(self.name, wish.args) or check_env(wish.env)
        if problem is not None:
            raise RejectedError(problem)
        path = path_of(wish.source, weights)
        dummy = value_of(wish.args, "--load-format") == "dummy"
        found = _known(check_hf(path, self.title, weights_needed=not dummy), weights)
        split = split_of(wish)
        check_split(split, found.heads, found.layers)
        if wish.gpus and not given(wish.args, *self.smaller_on_gpus):
            share = found.size // (split.tensor * split.pipeline)
            fraction = fraction_of(wish.args, self.memory_flag) or self.memory_most
            check_gpu_memory(share, wish.gpus, host.gpu_memory, fraction, self.memory_flag)
        return Checked(path, wish.memory_bytes or self.host_memory(wish, found.size // split.nodes))

    @abstractmethod
    def host_memory(self, wish: AssignmentRecord, size: int) -> int:
        """Bytes of host memory that the engine needs on this node, which loads ``size`` bytes of weights.

        Raises:
            RejectedError: what sets it cannot be understood.
        """

    @abstractmethod
    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        """See :meth:`.base.Driver.launch`."""

    def rehearsal(self, wish: AssignmentRecord, located: Located) -> Launch:
        """The command line as the serving node has it, but for its place and the weights, which are not known yet.

        Raises:
            RejectedError: there is none for this version of the engine.
        """
        members = tuple(Member(node, "127.0.0.1", 1) for node in wish.peers)
        gang = Gang(0, 1, members) if len(members) > 1 else None
        return self.launch(wish, located, Checked(Path("/weights"), 0), Place("127.0.0.1", 1, "", gang))


def meeting(place: Place, variable: str) -> dict[str, str]:
    """The environment of a replica over several nodes; ``variable`` tells the engine this node's own address.

    The engine listens there, which it cannot at a name; with a name it is left to find the address by itself.
    """
    gang = place.gang
    if gang is None:
        return {}
    own = {} if as_ip(gang.own.address) is None else {variable: gang.own.address}
    return {**place.fabric, **own}


def _known(found: HfFolder, weights: Available | None) -> HfFolder:
    """What the headers say goes before what the names of files do."""
    facts = weights.facts if weights is not None else None
    if facts is None:
        return found
    return HfFolder(facts.weights_bytes or found.size, facts.heads or found.heads, facts.layers or found.layers)
