"""An environment out of an archive with programs: unpacked, and tried."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.install.archives import shown
from llmgw_agent.install.bench import Bench
from llmgw_agent.install.errors import InstallRefusedError
from llmgw_agent.install.plan import Wanted
from llmgw_agent.install.progress import Phase
from llmgw_agent.install.run import Done
from llmgw_agent.install.smoke import SMOKE_SECONDS, Found
from llmgw_agent.weights import ArchiveError, Limits, Progress, unpack

#: Of the whole installation's progress.
FETCH_SHARE = 0.5
_LIMITS = Limits(files=100_000, bytes=16 << 30)
_VERSION = re.compile(r"version:\s*(\S+)")
_RELEASE = re.compile(r"b?(\d+)")


async def install(bench: Bench, location: str, sha256: str, building: Path) -> Found:
    """Makes the new folder ``building`` out of the archive, and tries its program.

    Raises:
        InstallRefusedError, InstallFailedError, OSError
    """
    await asyncio.to_thread(building.mkdir)
    # Below the folder that is cleared away after a kill, since unpacking has unfinished files beside its destination.
    await fetch_and_unpack(bench, location, sha256, building / "release", FETCH_SHARE)
    server = bench.wanted.programs.server
    program = await asyncio.to_thread(find_program, building, server)
    if program is None:
        raise InstallRefusedError(
            f"{bench.wanted.title}: there is no {server} in {shown(location)}; name an archive with built programs, or set "
            "build if it is source code"
        )
    return await try_program(bench, building, program)


async def fetch_and_unpack(bench: Bench, location: str, sha256: str, dest: Path, share: float) -> None:
    """Raises InstallRefusedError (nothing is written then), InstallFailedError, OSError."""
    wanted = bench.wanted

    def hear(progress: Progress) -> None:
        done, total = progress.bytes_done, progress.bytes_total
        said = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"
        bench.tell(Phase.FETCHING, 0.02 + share * (done / total if total else 0), said)

    bench.tell(Phase.FETCHING, 0.02, shown(location).rpartition("/")[2])
    async with bench.archives.get(wanted.title, location, sha256, hear) as path:
        bench.tell(Phase.UNPACKING, 0.02 + share)
        try:
            await asyncio.to_thread(unpack, path, dest, sha256, limits=_LIMITS)
        except ArchiveError as error:
            raise InstallRefusedError(f"{wanted.title}: {error}") from error


def find_program(folder: Path, name: str) -> Path | None:
    """The one that lies least deep."""
    found = [each for each in folder.rglob(name) if each.is_file()]
    return min(found, key=lambda each: (len(each.parts), str(each)), default=None)


async def try_program(bench: Bench, building: Path, program: Path) -> Found:
    """The smoke test.

    Raises:
        InstallRefusedError: the program does not run here, or is another version.
        InstallFailedError: it hangs.
    """
    bench.tell(Phase.TESTING, 0.9)
    await asyncio.to_thread(program.chmod, 0o755)
    version = judge(bench.wanted, await bench.run([str(program), "--version"], SMOKE_SECONDS), "--version")
    listed = await bench.run([str(program), "--list-devices"], SMOKE_SECONDS)
    judge(bench.wanted, listed, "--list-devices")
    return Found(version, devices_of(listed.lines), str(program.relative_to(building)))


def judge(wanted: Wanted, done: Done, flag: str) -> str:
    """What it calls its version. Pure. Raises InstallRefusedError if it did not run well."""
    name = wanted.programs.server
    last = next((line.strip() for line in reversed(done.lines) if line.strip()), "it wrote nothing")
    if done.status == -signal.SIGILL:
        raise InstallRefusedError(
            f"{wanted.title}: {name} is built for another CPU than this node's (illegal instruction); take a build for it, or "
            f"let the agent build it here with engines.install.{wanted.recipe.engine}.build"
        )
    if done.status != 0:
        how = f"is ended by signal {-done.status}" if done.status < 0 else f"fails with status {done.status}"
        raise InstallRefusedError(
            f"{wanted.title}: `{name} {flag}` {how}: {last[:300]}. Take a build for this system (a missing library is named "
            "above), or build it here"
        )
    found = next((match[1] for line in done.lines if (match := _VERSION.search(line))), "unknown")
    wished, said = _RELEASE.fullmatch(wanted.version), _RELEASE.fullmatch(found)
    # Builds outside of a repository call themselves 0.
    if flag == "--version" and wished and said and int(said[1]) and int(said[1]) != int(wished[1]):
        raise InstallRefusedError(
            f"{wanted.title} is wanted, but the archive holds version {found}; correct version or archive"
        )
    return found


def devices_of(lines: Sequence[str]) -> str:
    """What ``--list-devices`` names, in short. Pure."""
    found = [match[1] for line in lines if (match := re.match(r"\s+(\S[^:]*): ", line)) and not match[1].startswith("CPU")]
    return ", ".join(found) or "for CPU"
