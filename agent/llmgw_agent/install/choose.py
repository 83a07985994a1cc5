"""Which version of an engine this node gets, and how: its own configuration, else the fleet's settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llmgw_agent.install.settings import BuildSettings, EngineInstall
from llmgw_proto.records.engine import EngineRelease, EngineSettings


@dataclass(frozen=True, slots=True)
class Kind:
    """What settings tell nodes apart by."""

    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_classes: frozenset[str] = frozenset()


class Narrow(Protocol):
    """An override of either origin."""

    @property
    def gpu_class(self) -> str | None: ...

    @property
    def labels(self) -> dict[str, str]: ...


def fits(override: Narrow, kind: Kind) -> bool:
    if override.gpu_class is not None and override.gpu_class.casefold() not in {each.casefold() for each in kind.gpu_classes}:
        return False
    return all(kind.labels.get(key) == value for key, value in override.labels.items())


def own_choice(settings: EngineInstall, kind: Kind, version: str | None) -> EngineInstall:
    """For the wished version, None: for the one that such nodes run when none is wished."""
    fitting = next((each for each in settings.version_overrides if fits(each, kind)), None)
    chosen = fitting
    if version is not None and version != (fitting.version if fitting is not None else settings.version):
        # Lock and archive of that version count wherever they stand.
        named = next((each for each in settings.version_overrides if each.version == version), None)
        chosen = named if named is not None or version == settings.version else fitting
    if chosen is None:
        return settings
    found: dict[str, object] = {each: getattr(chosen, each) for each in ("version", "lock", "archive", "sha256")}
    if chosen.lock is not None or chosen.archive is not None:
        found |= {"requirements": [], "overrides": []}
    return settings.model_copy(update=found)


@dataclass(frozen=True, slots=True)
class FleetChoice:
    """``default``: what the node runs when no version is wished, None: nothing. ``release``: how ``version`` is had."""

    version: str
    default: str | None
    release: EngineRelease


def fleet_default(settings: EngineSettings, kind: Kind) -> str | None:
    return next((each.version for each in settings.overrides if fits(each, kind)), settings.version)


def fleet_choice(settings: EngineSettings, kind: Kind, version: str | None) -> FleetChoice | None:
    """None: the fleet has no version for such nodes, and none is wished."""
    default = fleet_default(settings, kind)
    wanted = version or default
    if wanted is None:
        return None
    known = settings.releases.get(wanted)
    if known is None:
        # A version that only a model names: from where the node's other one comes, unless that is tied to its version.
        base = settings.releases.get(default or "", EngineRelease())
        tied = {"lock_sha256": None, "archive": None, "sha256": None}
        known = base.model_copy(update=tied)
    return FleetChoice(wanted, default, known)


def as_install(choice: FleetChoice, lock: Path | None) -> EngineInstall:
    """The same in the words of the agent's configuration. ``lock``: where the release's lock lies on this node."""
    release = choice.release
    return EngineInstall(
        version=choice.version,
        lock=lock,
        requirements=[] if lock is not None else release.requirements,
        overrides=[] if lock is not None else release.overrides,
        find_links=release.find_links,
        index=release.index,
        extra_indexes=release.extra_indexes,
        archive=release.archive,
        sha256=release.sha256,
        build=BuildSettings(options=release.build_options) if release.build else None,
    )
