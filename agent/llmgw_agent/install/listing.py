"""All versions of engines on a node, in one list for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw_agent.install.collect import running_environments, size_of
from llmgw_agent.install.environments import Environment
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.recipes import RECIPES

INSTALLED, INSTALLING, FAILED, WANTED = "installed", "installing", "failed", "wanted"


@dataclass(slots=True)
class Listed:
    """One version. ``state`` is one of the words above."""

    engine: str
    version: str
    state: str
    detail: str = ""
    path: str = ""
    size: int = 0
    used_by: list[str] = field(default_factory=list)
    lock: str = ""
    default: bool = False
    origin: str = ""
    installed_at: float = 0
    used_at: float = 0


def listing(installer: Installer) -> list[Listed]:
    """Reads many files: call it in a thread."""
    running = running_environments(installer.environments.root)
    found: list[Listed] = []
    for engine in RECIPES:
        current = installer.environments.current(engine)
        wanted = installer.settings.default(engine)
        for each in installer.environments.all(engine):
            default = each.note.version == wanted if wanted is not None else current is not None and each.path == current.path
            found.append(describe(each, sorted(running.get(each.path, ())), default=default))
        known = {(one.engine, one.version) for one in found}
        for (name, version), step in installer.under_way().items():
            if name == engine:
                said = str(step) if step is not None else ""
                found.append(Listed(engine, version, INSTALLING, said, default=version == wanted))
        known |= {(one.engine, one.version) for one in found}
        for (name, version), reason in installer.failures().items():
            if name == engine and (name, version) not in known:
                found.append(Listed(engine, version, FAILED, reason, default=version == wanted))
        known |= {(one.engine, one.version) for one in found}
        if wanted is not None and (engine, wanted) not in known:
            found.append(Listed(engine, wanted, WANTED, "will be installed when it is needed", default=True))
        for one in found:
            if one.engine == engine and one.default:
                one.origin = installer.settings.origin(engine)
    return found


def describe(environment: Environment, used_by: list[str], *, default: bool = False) -> Listed:
    """Reads its files: call it in a thread."""
    note = environment.note
    return Listed(
        note.engine,
        environment.located.version,
        INSTALLED,
        note.devices,
        str(environment.path),
        size_of(environment.path),
        used_by,
        note.lock,
        default,
        installed_at=note.installed_at,
        used_at=environment.used_at,
    )
