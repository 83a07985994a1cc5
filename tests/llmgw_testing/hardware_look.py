"""A look at a made-up host that costs little: GPUs through the real helper, sysfs in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from llmgw_agent.hardware import host_probe, nvml_look
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.raw import NvmlFacts, System

#: For machines so loaded that starting a process takes seconds.
PATIENCE = 60.0


def look(tree: Path | None, *, gpus: bool = True, previous: Hardware | None = None) -> Hardware:
    """``tree`` is the sysfs tree, None for none; without ``gpus`` the host has no NVIDIA library."""
    nvml = asyncio.run(nvml_look.look(PATIENCE)) if gpus else NvmlFacts(system=System(error=12), complete=True)
    host = None if tree is None else host_probe.look(host_probe.Options(sysfs_root=str(tree)))
    return Hardware(nvml, host, previous=previous)
