"""What engines have in common that live in a Python environment of their own, built by ``llmgw_agent.install``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.engines.base import Located
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


def fraction_of(args: Sequence[str], *flags: str) -> float | None:
    """The flag's value if it is a number above 0 and up to 1."""
    try:
        value = float(value_of(args, *flags) or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


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
