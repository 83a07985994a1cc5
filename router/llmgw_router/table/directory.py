"""The table of replicas: an immutable :class:`Table`, swapped whole on every change, and the directory that makes them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from llmgw_router.admission.queue import WaitQueue
from llmgw_router.health import outlier
from llmgw_router.policies.base import Policy
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import EndpointSpec

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelState:
    """What outlives a change of the table, for one model."""

    name: str
    policy: Policy
    policy_name: str
    queue: WaitQueue
    running: int = 0
    requests: int = 0
    errors: int = 0
    seconds: float = 1.0
    """Moving mean of how long an answer takes, for Retry-After."""


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas that may take one kind of request for one model."""

    model: ModelState
    members: tuple[Replica, ...]
    """Not draining."""
    usable: tuple[Replica, ...]
    """Of those, the ones to choose from."""
    limited: bool
    """Some of them have a limit of concurrent requests."""


@dataclass(frozen=True, slots=True)
class Table:
    groups: Mapping[tuple[str, str], Group] = field(default_factory=dict)
    """(model, capability) → group; capability ``*`` stands for those of replicas that take everything."""
    models: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Every model that has an endpoint, draining ones too, in order of name."""
    replicas: tuple[Replica, ...] = ()
    declared: frozenset[str] = frozenset()
    """Models that the cluster wants to serve, whether or not they have an endpoint now."""

    def group(self, model: str, capability: str) -> Group | None:
        return self.groups.get((model, capability)) or self.groups.get((model, "*"))


ModelFactory = Callable[[str, str | None], ModelState]


class Directory:
    """Owns the replicas. ``table`` is read on the request path and never changes in place."""

    def __init__(
        self, make_model: ModelFactory, rules: outlier.Rules, retire: Callable[[Replica], None], workers: int = 1
    ) -> None:
        """``workers``: processes that share the limits of the replicas."""
        self.table = Table()
        self._make_model = make_model
        self._rules = rules
        self._retire = retire
        self._workers = workers
        self._models: dict[str, ModelState] = {}
        self.on_change: list[Callable[[Table], None]] = []

    def apply(self, specs: Iterable[EndpointSpec]) -> None:
        """Takes the whole list of endpoints; replicas that are still there keep their connections and record."""
        known = {each.spec.identity: each for each in self.table.replicas}
        replicas: list[Replica] = []
        for spec in sorted(specs, key=lambda each: each.id):
            replica = known.pop(spec.identity, None)
            if replica is None:
                replica = Replica(spec, self._workers)
                logger.info("endpoint added", extra={"fields": _fields(spec)})
            elif replica.spec != spec:
                if spec.draining and not replica.spec.draining:
                    logger.info("endpoint drains", extra={"fields": _fields(spec)})
                replica.update(spec)
            replicas.append(replica)
        for replica in known.values():
            logger.info("endpoint removed", extra={"fields": _fields(replica.spec)})
            replica.gone = True
            self._retire(replica)
        self._swap(tuple(replicas))

    def declare(self, names: Iterable[str]) -> None:
        """Takes the names of all models that are meant to be served."""
        self.table = dataclasses.replace(self.table, declared=frozenset(names))

    def refresh(self) -> None:
        """Makes the table again after a replica's health changed."""
        self._swap(self.table.replicas)

    def state(self, model: str) -> ModelState | None:
        return self._models.get(model)

    def states(self) -> Iterable[ModelState]:
        return self._models.values()

    def _swap(self, replicas: tuple[Replica, ...]) -> None:
        models: dict[str, list[Replica]] = {}
        for replica in replicas:
            for name in replica.spec.models:
                models.setdefault(name, []).append(replica)
        groups: dict[tuple[str, str], Group] = {}
        for name, members in models.items():
            self._groups_of(name, members, groups)
        for name in [each for each, state in self._models.items() if each not in models and not state.running]:
            if not self._models[name].queue:
                del self._models[name]
        self.table = Table(groups, {name: tuple(models[name]) for name in sorted(models)}, replicas, self.table.declared)
        for callback in self.on_change:
            callback(self.table)

    def _groups_of(self, name: str, members: list[Replica], into: dict[tuple[str, str], Group]) -> None:
        wanted = next((each.spec.policy for each in members if each.spec.policy), None)
        state = self._models.get(name)
        if state is None:
            state = self._models[name] = self._make_model(name, wanted)
        elif wanted is not None and wanted != state.policy_name:
            fresh = self._make_model(name, wanted)
            state.policy, state.policy_name = fresh.policy, fresh.policy_name
        takes_all = any(each.spec.capabilities is None for each in members)
        capabilities = {one for each in members for one in each.spec.capabilities or ()}
        for capability in [*capabilities, *(["*"] if takes_all else [])]:
            able = tuple(
                each
                for each in members
                if not each.spec.draining and (each.spec.capabilities is None or capability in each.spec.capabilities)
            )
            usable = outlier.usable(able, self._rules)
            into[name, capability] = Group(state, able, usable, any(each.limit is not None for each in usable))


def _fields(spec: EndpointSpec) -> dict[str, object]:
    return {"replica": spec.id, "models": ",".join(spec.models), "url": str(spec.address), "node": spec.node}
