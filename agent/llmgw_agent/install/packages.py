"""An environment out of packages, by uv."""

from __future__ import annotations

import tempfile
from pathlib import Path

from llmgw_agent.install import smoke
from llmgw_agent.install.bench import Bench
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.explain import explain
from llmgw_agent.install.plan import Wanted, compile_arguments, count_packages, install_arguments, venv_arguments
from llmgw_agent.install.progress import Downloads, Phase
from llmgw_agent.install.run import find_uv
from llmgw_agent.install.smoke import SMOKE_SECONDS, Found

#: Of the whole installation's progress.
DOWNLOADS_SHARE = 0.65
_TELLING = ("Downloading ", "Downloaded ", "Building ", "Built ", "Prepared ", "Resolved ", "Installed ", "Preparing ")


async def resolve(bench: Bench) -> str:
    """Resolves the requirements and returns the lock, which is kept.

    Raises:
        InstallRefusedError, InstallFailedError
    """
    wanted = bench.wanted
    bench.tell(Phase.RESOLVING, 0.02)
    with tempfile.TemporaryDirectory(prefix=".resolving-", dir=bench.folder) as scratch:
        inputs, overrides, output = _write_inputs(Path(scratch), wanted)
        await _uv(bench, compile_arguments(wanted, inputs, overrides, output), Phase.RESOLVING, 0.02)
        return keep_lock(output, wanted.lock)


async def install(bench: Bench, lock: str, building: Path) -> Found:
    """Makes the new folder ``building`` an environment with what the lock names, and tries it.

    Raises:
        InstallRefusedError, InstallFailedError, OSError
    """
    wanted = bench.wanted
    bench.tell(Phase.INSTALLING, 0.1, f"{count_packages(lock)} packages")
    await _uv(bench, venv_arguments(wanted, building), Phase.INSTALLING, 0.1)
    python, pinned = building / "bin" / "python", building / "llmgw-lock.txt"
    # What was checked is what is installed, whatever happens to the file meanwhile.
    pinned.write_text(lock)
    await _uv(bench, install_arguments(wanted, pinned, python), Phase.INSTALLING, 0.15)
    bench.tell(Phase.TESTING, 0.85)
    return smoke.judge(wanted, await bench.run([str(python), *smoke.arguments(wanted)], SMOKE_SECONDS))


async def _uv(bench: Bench, arguments: list[str], phase: Phase, fraction: float) -> None:
    downloads, wanted = Downloads(), bench.wanted

    def on_line(line: str) -> None:
        downloads.hear(line)
        if line.strip().startswith(_TELLING):
            bench.tell(phase, fraction + DOWNLOADS_SHARE * downloads.fraction, line.strip()[:120])

    cache = ["--no-cache"] if bench.fresh else []
    done = await bench.run([*find_uv(), *cache, *arguments], wanted.settings.timeout_seconds, on_line)
    if done.status != 0:
        reason = explain(done.status, done.lines)
        kind = InstallRefusedError if reason.final else InstallFailedError
        raise kind(f"{wanted.title} cannot be installed: {reason.text} (log: {bench.log})")


def _write_inputs(scratch: Path, wanted: Wanted) -> tuple[Path, Path | None, Path]:
    """The files of requirements and of overrides, and where the lock is to go."""
    requirements, overrides = scratch / "requirements.txt", scratch / "overrides.txt"
    requirements.write_text("\n".join(wanted.requirements) + "\n")
    overrides.write_text("\n".join(wanted.settings.overrides) + "\n")
    return requirements, overrides if wanted.settings.overrides else None, scratch / "lock.txt"


def keep_lock(output: Path, kept: Path) -> str:
    """Moves a new lock to its place; raises OSError."""
    text = output.read_text()
    kept.parent.mkdir(parents=True, exist_ok=True)
    output.replace(kept)
    return text
