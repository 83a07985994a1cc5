"""One look at the host's hardware, and the ``detect`` subcommand."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmgw_agent.hardware import host_look, nvml_look
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.host_probe import HostFacts, Options
from llmgw_agent.hardware.topology import as_json

__all__ = ["Hardware", "detect", "detect_main"]

_WEIGHTS = (Path("/var/lib/llmgw"),)
#: Wide enough for eight GPUs beside ten adapters when the output is not a terminal.
_PIPE_WIDTH = 200


async def detect(
    sysfs_root: Path = Path("/sys"),
    deadline: float = 5.0,
    *,
    paths: Sequence[Path] = (),
    peers: Sequence[str] = (),
    previous: Hardware | None = None,
) -> Hardware:
    """Looks at the host once, within ``deadline`` seconds; never raises for what the hardware does.

    Args:
        sysfs_root: another tree than the kernel's, for tests and for captures of other hosts.
        deadline: seconds after which what has been found so far counts.
        paths: folders whose file systems are reported.
        peers: IP addresses of other nodes whose routes decide ``Hardware.nccl_env(peer)``.
        previous: the last look, for the identity of GPUs that are lost now.
    """
    options = Options(sysfs_root=str(sysfs_root), paths=[str(path) for path in paths], peers=list(peers))
    nvml, (host, trouble) = await asyncio.gather(nvml_look.look(deadline), _host(options, deadline))
    return Hardware(nvml, host, trouble, previous)


async def _host(options: Options, deadline: float) -> tuple[HostFacts | None, str | None]:
    try:
        return await host_look.look(options, deadline), None
    except host_look.HostProbeError as error:
        return None, str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmgw-agent detect",
        description="Shows this host's GPUs, NVLink, InfiniBand, PCIe and NUMA topology, and what is wrong with it.",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print it (default: table)")
    parser.add_argument(
        "--sysfs-root",
        type=Path,
        default=Path("/sys"),
        metavar="DIR",
        help="read this tree instead of /sys, for example a copy",
    )
    parser.add_argument(
        "--path",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"a folder whose file system to report, repeatable (default: {_WEIGHTS[0]})",
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="give up on what hangs after this long (default: 5)"
    )
    return parser


def detect_main(argv: Sequence[str]) -> int:
    """The ``detect`` subcommand; ``argv`` is what follows it. Problems of the hardware are its output, not its failure."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.sysfs_root.is_dir():
        parser.error(f"--sysfs-root {options.sysfs_root}: no such folder")
    if not options.timeout > 0:
        parser.error(f"--timeout {options.timeout:g}: must be more than 0 seconds")
    hardware = asyncio.run(detect(options.sysfs_root, options.timeout, paths=options.path or _WEIGHTS))
    try:
        _show(as_json(hardware), options.output)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has had enough, `| head` for one. What is still buffered must not raise again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _show(facts: dict[str, Any], output: str) -> None:
    if output == "json":
        json.dump(facts, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        # Imported here: the agent's own loop detects without drawing.
        from rich.console import Console

        from llmgw_base import hardware_view

        console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
        console.print(hardware_view.node(facts), highlight=False)
