"""One look at the host's hardware, and the ``detect`` subcommand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.hardware import host_look, nvml_look
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.host_probe import HostFacts, Options

__all__ = ["Hardware", "detect"]


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
