"""What the inventory says of an engine that the agent installs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmgw_agent.install.environments import Environments
from llmgw_proto.records import EngineInfo


class Shelf:
    """``default`` gives the version of an engine that runs when none is wished; None: the agent installs none."""

    def __init__(self, environments: Environments | None = None, default: Callable[[str], str | None] = lambda _: None) -> None:
        self.environments = environments or Environments(Path("/nonexistent"))
        self.default = default

    def listed(self, engine: str, *, preferred: bool = True) -> list[EngineInfo]:
        """Every version that is here, and the one that can be installed. ``preferred``: one of these runs if none is wished."""
        wanted = self.default(engine)
        current = self.environments.current(engine)
        found = []
        for each in self.environments.all(engine):
            usual = each.note.version == wanted if wanted is not None else current is not None and each.path == current.path
            located = each.located
            found.append(EngineInfo(name=engine, version=located.version, detail=located.detail, default=preferred and usual))
        if wanted is not None and all(each.note.version != wanted for each in self.environments.all(engine)):
            later = "will be installed when it is needed"
            found.append(EngineInfo(name=engine, version=wanted, detail=later, default=preferred))
        return found
