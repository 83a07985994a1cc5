"""What this node installs, whoever says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pydantic import ValidationError

from llmgw_agent.install.choose import Kind, as_install, fleet_choice, fleet_default, own_choice
from llmgw_agent.install.errors import InstallRefusedError
from llmgw_agent.install.fleet import Fleet
from llmgw_agent.install.settings import EngineInstall

FLEET_KEEP = 1


async def _at_once() -> None:
    pass


class NodeSettings:
    """``own``: the agent's configuration, by engine; where it says nothing, the fleet's settings count.

    ``looked`` returns when the first look at the node's GPUs is over.
    """

    def __init__(
        self,
        own: Mapping[str, EngineInstall],
        fleet: Fleet | None = None,
        kind: Callable[[], Kind] = Kind,
        looked: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self._own, self._fleet, self._kind, self._looked = own, fleet, kind, looked

    async def ready(self, engine: str) -> None:
        """Returns once all that decides about the engine is known, or when that takes too long."""
        own = self._own.get(engine)
        if own is None and self._fleet is not None:
            await self._fleet.ready()
        fleet = self._fleet.settings.get(engine) if self._fleet is not None else None
        overrides = own.version_overrides if own is not None else fleet.overrides if fleet is not None else []
        if any(each.gpu_class is not None for each in overrides):
            await self._looked()

    async def follow(self) -> None:
        """Follows the fleet's settings, for ever."""
        if self._fleet is not None:
            await self._fleet.follow()

    def default(self, engine: str) -> str | None:
        """The version that runs when none is wished; None: the agent installs none."""
        own = self._own.get(engine)
        if own is not None:
            return own_choice(own, self._kind(), None).version
        fleet = self._fleet.settings.get(engine) if self._fleet is not None else None
        return fleet_default(fleet, self._kind()) if fleet is not None else None

    def origin(self, engine: str) -> str:
        """``node``, ``fleet``, or empty: nobody says anything."""
        if engine in self._own:
            return "node"
        return "fleet" if self.default(engine) is not None else ""

    def keep(self, engine: str) -> int | None:
        """How many unused environments to keep; None: all."""
        own = self._own.get(engine)
        if own is not None:
            return own.keep
        return FLEET_KEEP if self.default(engine) is not None else None

    async def find(self, engine: str, version: str | None) -> EngineInstall | None:
        """How the version, or the default one, is installed; None: not at all.

        Raises:
            InstallRefusedError, InstallFailedError: the lock cannot be had.
        """
        kind, own = self._kind(), self._own.get(engine)
        if own is not None:
            return own_choice(own, kind, version)
        fleet = self._fleet
        if fleet is None or (settings := fleet.settings.get(engine)) is None:
            return None
        choice = fleet_choice(settings, kind, version)
        if choice is None:
            return None
        digest = choice.release.lock_sha256
        lock = await fleet.lock(engine, choice.version, digest) if digest is not None else None
        try:
            return as_install(choice, lock)
        except ValidationError as error:
            raise InstallRefusedError(
                f"engine {engine} {choice.version}: the fleet's settings make no sense to this agent: "
                f"{error.errors(include_url=False)[0]['msg']}; see `llmgwctl engine settings`, or update the agent"
            ) from error
