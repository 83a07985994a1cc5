"""The work on one environment: what every step of it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.install.archives import Archives
from llmgw_agent.install.locks import Lock
from llmgw_agent.install.plan import Wanted
from llmgw_agent.install.progress import Phase, Progress, Step
from llmgw_agent.install.run import Done, environment, run


@dataclass(frozen=True, slots=True)
class Bench:
    wanted: Wanted
    folder: Path
    """Of the engine; other environments are there too."""
    cache: Path
    archives: Archives
    lock: Lock
    progress: Progress
    fresh: bool = False
    """Nothing of an earlier installation is to be trusted, uv's cache neither: files of environments are links into it."""

    def tell(self, phase: Phase, fraction: float, text: str = "") -> None:
        self.progress(Step(self.wanted.title, phase, fraction, text))

    async def run(self, argv: Sequence[str], limit: float, on_line: Callable[[str], None] = lambda _: None) -> Done:
        """Raises InstallFailedError: it took longer than ``limit`` seconds, or cannot be started."""
        return await run(argv, environment(self.cache), self.log, limit=limit, hold=self.lock.fd, on_line=on_line)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.wanted.version}.log"
