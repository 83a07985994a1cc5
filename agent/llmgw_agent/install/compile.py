"""An environment out of source code, by cmake: only the programs that are used, with as little of the machine as is fair."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from llmgw_agent.host.memory import read_memory
from llmgw_agent.install.archives import shown
from llmgw_agent.install.bench import Bench
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.plan import Wanted
from llmgw_agent.install.programs import fetch_and_unpack, find_program, try_program
from llmgw_agent.install.progress import Phase, built
from llmgw_agent.install.run import Done
from llmgw_agent.install.smoke import Found

#: Of the whole installation's progress.
FETCH_SHARE, BUILD_FROM, BUILD_SHARE = 0.05, 0.1, 0.78
#: What one compiler of C++ may take.
JOB_BYTES = 2 << 30
#: Where the source is inside of its archive, below the one folder that most have.
_INSIDE = ("vendor/llama.cpp", "")
_TARGET = re.compile(r"^(?:\.\.\. )?([\w.+-]+)(?:: phony)?$|^\.\.\. ([\w.+-]+)")
_ERROR = re.compile(r"CMake Error|(?:fatal )?error:|undefined reference|No such file|not found|\*\*\*", re.IGNORECASE)


async def install(bench: Bench, location: str, sha256: str, building: Path) -> Found:
    """Makes the new folder ``building`` out of the archive's source, and tries what came of it.

    Raises:
        InstallRefusedError, InstallFailedError, OSError
    """
    wanted = bench.wanted
    assert wanted.packed is not None and wanted.packed.build is not None
    for tool, package in (("cmake", "cmake"), ("c++", "g++")):
        if shutil.which(tool) is None:
            raise InstallRefusedError(
                f"{wanted.title} is to be built here, and {tool} is missing; install it (on Debian and Ubuntu: apt-get install "
                f"{package} make), or name an archive with built programs"
            )
    await asyncio.to_thread(building.mkdir)
    source, work = building / "source", building / "work"
    await fetch_and_unpack(bench, location, sha256, source, FETCH_SHARE)
    root = await asyncio.to_thread(find_source, source)
    if root is None:
        raise InstallRefusedError(
            f"{wanted.title}: there is no CMakeLists.txt in {shown(location)}; name an archive of the source code"
        )
    options = [*wanted.programs.options, *wanted.packed.build.options]
    bench.tell(Phase.BUILDING, BUILD_FROM, "looking at this machine")
    await _cmake(bench, ["-S", str(root), "-B", str(work), *options])
    offered = targets(await _cmake(bench, ["--build", str(work), "--target", "help"]))
    chosen = choose_targets(wanted, offered)
    told = BUILD_FROM

    def on_line(line: str) -> None:
        nonlocal told
        if (part := built(line)) is not None:
            # Each program counts from the beginning again.
            told = max(told, BUILD_FROM + BUILD_SHARE * part)
            bench.tell(Phase.BUILDING, told, re.sub(r"^\[[^\]]*\]\s*", "", line.strip())[:100])

    jobs = wanted.packed.build.jobs or jobs_for(len(os.sched_getaffinity(0)), read_memory().available)
    await _cmake(bench, ["--build", str(work), "--parallel", str(jobs), "--target", *chosen], on_line)
    await asyncio.to_thread(_collect, work, building / "bin", chosen)
    for each in (source, work):
        await asyncio.to_thread(shutil.rmtree, each)
    return await try_program(bench, building, building / "bin" / wanted.programs.server)


async def _cmake(bench: Bench, arguments: Sequence[str], on_line: Callable[[str], None] = lambda _: None) -> Done:
    # Engines that serve come first.
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    done = await bench.run([*nice, "cmake", *arguments], bench.wanted.settings.timeout_seconds, on_line)
    if done.status != 0:
        text, final = explain(done)
        kind = InstallRefusedError if final else InstallFailedError
        raise kind(f"{bench.wanted.title} cannot be built: {text} (log: {bench.log})")
    return done


def explain(done: Done) -> tuple[str, bool]:
    """What went wrong, and whether trying again is in vain. Pure."""
    whole = "\n".join(done.lines)
    if done.status < 0 or "Killed signal terminated" in whole or "internal compiler error: Killed" in whole:
        return "the compiler was killed; if nobody did that, the host may be out of memory: lower build.jobs", False
    if "No space left on device" in whole:
        return "the disk is full; free space below the agent's state_dir", False
    found = [index for index, line in enumerate(done.lines) if _ERROR.search(line)]
    first = found[0] if found else max(0, len(done.lines) - 3)
    said = " ".join(line.strip() for line in done.lines[first : first + 3])
    return f"{said[:400] or 'cmake wrote nothing'}. Correct build.options, or install what it misses", True


def find_source(folder: Path) -> Path | None:
    """Where cmake begins."""
    tops = [folder, *sorted(each for each in folder.iterdir() if each.is_dir())]
    candidates = [top / inside if inside else top for inside in _INSIDE for top in tops]
    return next((each for each in candidates if (each / "CMakeLists.txt").is_file()), None)


def targets(done: Done) -> set[str]:
    """What make or ninja say they can build. Pure."""
    found = (_TARGET.match(line.strip()) for line in done.lines)
    return {match[1] or match[2] for match in found if match is not None}


def choose_targets(wanted: Wanted, offered: Collection[str]) -> list[str]:
    """Pure. Raises InstallRefusedError: the server is not among them."""
    programs = wanted.programs
    if programs.server not in offered:
        raise InstallRefusedError(f"{wanted.title}: its source has no target {programs.server}; take another version")
    also = (next((name for name in names if name in offered), None) for names in programs.also)
    # The server first: it needs nearly all of the time, and progress counts from the beginning with each.
    return [programs.server, *(each for each in also if each is not None)]


def jobs_for(cores: int, memory: int) -> int:
    """Pure."""
    return max(1, min(cores, memory // JOB_BYTES))


def _collect(work: Path, into: Path, programs: Sequence[str]) -> None:
    """Takes the programs, and what they need beside them if shared libraries were asked for. Raises OSError."""
    into.mkdir()
    for name in programs:
        found = find_program(work, name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, f"{name} was built and is not there", str(work))
        shutil.copy2(found, into / name)
        for library in found.parent.glob("*.so*"):
            # Programs may lie side by side, and a link cannot be made twice.
            if not os.path.lexists(into / library.name):
                shutil.copy2(library, into / library.name, follow_symlinks=False)
