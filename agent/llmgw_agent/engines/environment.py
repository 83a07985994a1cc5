"""What engines have in common that live in a Python environment of their own, built by ``llmgw_agent.install``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.engines.base import Located, Pattern
from llmgw_agent.engines.client import EngineClient
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.records import AssignmentRecord, EngineInfo

GIB = 1 << 30


class EnvironmentEngine:
    def __init__(self, name: str, shelf: Shelf) -> None:
        self.name = name
        self._shelf = shelf

    def locate(self) -> Located | None:
        environment = self._shelf.environments.current(self.name)
        return environment.located if environment is not None else None

    def worker_listens(self, wish: AssignmentRecord) -> bool:
        return False

    def inventory(self) -> list[EngineInfo]:
        """Every version that is here, and the one that can be installed."""
        return self._shelf.listed(self.name)


def given(args: Sequence[str], *flags: str) -> bool:
    """Whether the user gave one of the flags (with dashes), in any spelling but abbreviations."""
    return value_of(args, *flags) is not None


def value_of(args: Sequence[str], *flags: str) -> str | None:
    """The flag's value as the user gave it last, "" for a flag without one; None if it is not there."""
    found = None
    for index, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("_", "-")
        if flag in flags:
            following = args[index + 1] if index + 1 < len(args) and not args[index + 1].startswith("-") else ""
            found = value if equals else following
    return found


def number_of(args: Sequence[str], *flags: str) -> int | None:
    """The flag's value if it is a number above zero."""
    value = value_of(args, *flags)
    return int(value) if value is not None and value.isascii() and value.isdigit() and int(value) > 0 else None


def environment_of(located: Located, wish: AssignmentRecord, defaults: dict[str, str]) -> dict[str, str]:
    """The wish's variables over ``defaults``, and what nobody may change over both."""
    home = Path(located.argv[0]).parent.parent
    path = wish.env.get("PATH") or os.environ.get("PATH", os.defpath)
    return {
        "PYTHONUNBUFFERED": "1",
        # Weights are local; no engine shall wait for a hub that it does not need.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **defaults,
        **wish.env,
        # Neither the agent's own packages nor files in the current folder.
        "PYTHONPATH": wish.env.get("PYTHONPATH", ""),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        # Compilers of kernels look for ninja and the like; and it tells that the environment is in use.
        "VIRTUAL_ENV": str(home),
        "PATH": f"{home / 'bin'}:{path}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(wish.gpus),
    }


async def count_requests(client: EngineClient, *gauges: str) -> bool | None:
    """Whether the sum of these gauges in /metrics is above zero; None if none is there.

    Raises:
        EngineSilentError: no answer.
    """
    text = (await client.get("/metrics", 2)).body.decode(errors="replace")
    names = "|".join(map(re.escape, gauges))
    values = [float(each) for each in re.findall(rf"^(?:{names})(?:\{{[^\n]*\}})? ([0-9.eE+]+)$", text, re.MULTILINE)]
    return sum(values) > 0 if values else None


#: What CUDA, NCCL and Python say alike in every engine of this kind, those first that tell most.
COMMON_PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        re.compile(r"error: (unrecognized arguments: .+|argument .+|ambiguous option: .+|the following arguments .+)"),
        "the engine does not take its arguments ({0}).",
        "Correct the model's args, or use another version of the engine.",
        final=True,
    ),
    Pattern(
        re.compile(r"\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE"),
        "the port was taken.",
        "Another port is tried.",
        port_taken=True,
    ),
    Pattern(
        re.compile(r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available"),
        "the GPU's driver or the GPU itself is too old for this build of the engine.",
        "Update the NVIDIA driver, or install a build for an older CUDA.",
        final=True,
    ),
    Pattern(
        re.compile(r"gated repo|GatedRepoError|401 Client Error|Access to model .+ is restricted"),
        "the weights are behind an access agreement.",
        "Accept it on the hub and give the agent a token that may read them, or copy the weights to the node.",
        final=True,
    ),
    Pattern(
        re.compile(r"no space left on device|os error 28", re.IGNORECASE),
        "the disk or /dev/shm is full.",
        "Free space there.",
    ),
    Pattern(
        re.compile(r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|HIP out of memory"),
        "GPU memory ran out.",
        "Give the model more GPUs, a shorter context or a smaller quantisation, or see what else uses the GPU.",
    ),
    Pattern(
        re.compile(
            r"(NCCL (?:error|WARN)[^\n]{0,120}|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError)"
        ),
        "the GPUs could not talk to each other ({0}).",
        "Look at the fabric with `llmgwctl fabric` and at the log; NCCL_DEBUG=INFO in the model's env makes it say more.",
    ),
    Pattern(
        re.compile(r"CUDA error: ([^\n]{1,100})|\bXid\b"),
        "the GPU or its driver failed ({0}).",
        "Look at the node's GPU health; if it comes back, reset the GPU or reboot the host.",
    ),
    Pattern(
        re.compile(r"std::bad_alloc|MemoryError|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory"),
        "host memory ran out.",
        "Give the model a node with more memory, or smaller limits.",
    ),
)
