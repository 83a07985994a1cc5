"""Simulated InfiniBand fabrics: fat trees as .net files, run by the real ibsim, managed by the real opensm.

Needs the Debian packages ibsim-utils, libumad2sim0, infiniband-diags and opensm; without them the tests fail and say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 60.0
HOST_GUID, LEAF_GUID, SPINE_GUID = 0x0C42A10300000000, 0xB8CEF60300001000, 0xB8CEF60300000010
_UPLINK = 21


def host_guid(index: int) -> str:
    return f"{HOST_GUID + 0x100 * index:016x}"


def leaf_guid(index: int) -> str:
    return f"{LEAF_GUID + index:016x}"


def spine_guid(index: int) -> str:
    return f"{SPINE_GUID + index:016x}"


def fat_tree(hosts: int, per_leaf: int, spines: int, lines: int = 1, speed: str = "4xHDR") -> str:
    """A two-level fat tree: ``per_leaf`` hosts on each leaf (from port 1), ``lines`` links to each spine (from port 21)."""
    leaves = -(-hosts // per_leaf)
    blocks: list[str] = []
    for host in range(hosts):
        guid = host_guid(host)
        port, leaf = host % per_leaf + 1, leaf_guid(host // per_leaf)
        blocks.append(
            f"vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x{guid}\ncaguid=0x{guid}\n"
            f'Ca\t1 "H-{guid}"\t\t# "gpu{host:03d} mlx5_0"\n'
            f'[1]({int(guid, 16) + 1:x}) \t"S-{leaf}"[{port}]\t\t# lid 0 lmc 0 "leaf{host // per_leaf}" lid 0 {speed}\n'
        )
    for at in range(leaves):
        hosted = range(at * per_leaf, min(hosts, (at + 1) * per_leaf))
        down = [_line(host % per_leaf + 1, f"H-{host_guid(host)}", 1, f"gpu{host:03d} mlx5_0", speed) for host in hosted]
        up = [
            _line(_UPLINK + spine * lines + line, f"S-{spine_guid(spine)}", at * lines + line + 1, f"spine{spine}", speed)
            for spine in range(spines)
            for line in range(lines)
        ]
        blocks.append(_switch(leaf_guid(at), f"leaf{at}", down + up))
    for spine in range(spines):
        ports = [
            _line(leaf * lines + line + 1, f"S-{leaf_guid(leaf)}", _UPLINK + spine * lines + line, f"leaf{leaf}", speed)
            for leaf in range(leaves)
            for line in range(lines)
        ]
        blocks.append(_switch(spine_guid(spine), f"spine{spine}", ports))
    return "\n".join(blocks)


def _line(port: int, other: str, other_port: int, name: str, speed: str) -> str:
    return f'[{port}]\t"{other}"[{other_port}] \t\t# "{name}" lid 0 {speed}\n'


def _switch(guid: str, name: str, ports: list[str]) -> str:
    head = f"vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x{guid}\nswitchguid=0x{guid}({guid})\n"
    return head + f'Switch\t40 "S-{guid}"\t\t# "{name}" enhanced port 0 lid 0 lmc 0\n' + "".join(ports)


def count_links(hosts: int, per_leaf: int, spines: int, lines: int = 1) -> int:
    return hosts + -(-hosts // per_leaf) * spines * lines


class Fabric:
    """A running simulation; ``env`` makes the tools talk to it instead of to hardware."""

    def __init__(self, folder: Path, name: str, console: int, seen_from: str | None) -> None:
        self._folder, self._console = folder, console
        found = [str(path) for path in Path("/usr/lib").glob("*/umad2sim/libumad2sim.so")]
        assert found, "libumad2sim.so is not installed: install the package libumad2sim0"
        self.env = {"IBSIM_SOCKNAME": name, "LD_PRELOAD": found[0]} | ({} if seen_from is None else {"SIM_HOST": seen_from})

    def say(self, *commands: str) -> None:
        """Commands of ibsim's console, for example ``Unlink "S-…"[34]``."""
        os.write(self._console, "".join(f"{command}\n" for command in commands).encode())


@contextmanager
def simulated(folder: Path, net: str, *, manager: bool = True, seen_from: int | None = 0) -> Iterator[Fabric]:
    """Runs a fabric, seen from one of its hosts (None: the first), set up by opensm unless ``manager`` is False."""
    for program, package in (("ibsim", "ibsim-utils"), ("opensm", "opensm"), ("ibnetdiscover", "infiniband-diags")):
        assert shutil.which(program), f"{program} is not installed: install the package {package}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fabric.net").write_text(net)
    fifo = folder / "console"
    os.mkfifo(fifo)
    console = os.open(fifo, os.O_RDWR)
    name = f"llmgw-{uuid.uuid4().hex[:12]}"
    fabric = Fabric(folder, name, console, None if seen_from is None else f"H-{host_guid(seen_from)}")
    children: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "ibsim.log"
        sizes = ["-N", "20000", "-S", "2000", "-P", "100000", "-L", "50000"]
        children.append(_start(["ibsim", "-s", *sizes, "fabric.net"], folder, log, {"IBSIM_SOCKNAME": name}, console))
        _until(folder / "ibsim.log", "Network simulator ready", children[0])
        if manager:
            environment = fabric.env | {"OSM_TMP_DIR": str(folder), "OSM_CACHE_DIR": str(folder)}
            children.append(_start(["opensm", "-f", str(folder / "opensm.log"), "-e"], folder, log, environment))
            # Written when its first sweep has set everything up.
            _until(folder / "opensm-subnet.lst", "LID", children[1])
        yield fabric
    finally:
        for child in reversed(children):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.close(console)


def _start(
    argv: list[str], folder: Path, log: Path, env: dict[str, str], stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, cwd=folder, env=os.environ | env, stdin=stdin, stdout=out, stderr=out, start_new_session=True
        )


def _until(log: Path, word: str, child: subprocess.Popen[bytes]) -> None:
    """Waits until a program has written a word to its log."""
    end = time.monotonic() + PATIENCE
    while True:
        text = log.read_text(errors="replace") if log.exists() else ""
        if word in text:
            return
        assert child.poll() is None, f"{child.args!r} ended: {text[-2000:]}"
        assert time.monotonic() < end, f"{child.args!r} did not write {word!r} to {log.name}: {text[-2000:]}"
        time.sleep(0.02)
