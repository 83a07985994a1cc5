"""The CPUs that this machine may use."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw_proto.records import CpuFacts


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> CpuFacts:
    try:
        text = cpuinfo.read_text()
    except OSError:
        text = ""
    fields = [line.partition(":") for line in text.splitlines() if ":" in line]
    models = [value.strip() for name, _, value in fields if name.strip() in ("model name", "Model", "cpu model")]
    sockets = {value.strip() for name, _, value in fields if name.strip() == "physical id"}
    return CpuFacts(model=models[0] if models else "", sockets=max(1, len(sockets)), cores=len(os.sched_getaffinity(0)))
