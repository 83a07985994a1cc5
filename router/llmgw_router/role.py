"""What a supervisor tells each of its workers, in the environment."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

VARIABLE = "LLMGW_ROUTER_WORKER"


@dataclass(frozen=True, slots=True)
class Role:
    index: int
    """From 0; the first also speaks for the router in the cluster."""
    port: int
    life: int
    """A descriptor that reads as closed when the supervisor is gone, however it ended."""
    folder: Path
    """Where the workers find each other."""

    def environment(self) -> dict[str, str]:
        return {VARIABLE: f"{self.index}:{self.port}:{self.life}:{self.folder}"}

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> Self | None:
        """This process's role, None when nobody supervises it. Taken out of the environment, so that no child inherits it."""
        text = environment.pop(VARIABLE, "")
        if not text:
            return None
        index, port, life, folder = text.split(":", 3)
        return cls(int(index), int(port), int(life), Path(folder))
