"""The smoke test of a new environment: is the engine there, of the right version, and does it see the devices?"""

from __future__ import annotations

import json
from dataclasses import dataclass

from llmgw_agent.install.errors import InstallRefusedError
from llmgw_agent.install.plan import Wanted
from llmgw_agent.install.run import Done

#: Makes no context on a GPU, where other engines may need all of the memory.
SCRIPT = """
import importlib, importlib.metadata, importlib.util, json, os, sys
version = ""
for name in sys.argv[2:]:
    try:
        version = importlib.metadata.version(name)
        break
    except importlib.metadata.PackageNotFoundError:
        pass
module = importlib.import_module(sys.argv[1])
version = version or str(getattr(module, "__version__", ""))
devices, problem = "no GPU", ""
if importlib.util.find_spec("torch"):
    import torch
    cuda = torch.version.cuda
    if cuda and torch.cuda.is_available():
        devices = f"CUDA {cuda}, {torch.cuda.device_count()} GPUs"
    elif cuda and os.path.exists("/dev/nvidia0"):
        problem = f"torch {torch.__version__} is built for CUDA {cuda} and cannot use the GPUs that are here"
    elif not cuda:
        devices = "for CPU"
elif hasattr(module, "get_device_info"):
    names = [str(each["name"]) for each in module.get_device_info()]
    devices = ", ".join(each for each in names if not each.startswith("CPU")) or "for CPU"
print("llmgw-smoke", json.dumps({"version": version, "devices": devices, "problem": problem}))
"""
_MARK = "llmgw-smoke "
SMOKE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Found:
    version: str
    devices: str
    program: str = ""
    """Path inside the environment, for an engine that is a program."""


def arguments(wanted: Wanted) -> list[str]:
    """What follows the new environment's Python."""
    return ["-P", "-c", SCRIPT, wanted.recipe.module, *wanted.recipe.distributions]


def judge(wanted: Wanted, done: Done) -> Found:
    """Raises InstallRefusedError if the test failed."""
    said = next((line.removeprefix(_MARK) for line in reversed(done.lines) if line.startswith(_MARK)), None)
    if done.status != 0 or said is None:
        last = next((line.strip() for line in reversed(done.lines) if line.strip()), "it wrote nothing")
        raise InstallRefusedError(
            f"{wanted.title} was built, but `import {wanted.recipe.module}` fails in it (exit status {done.status}): "
            f"{last[:300]}. Correct the lock or requirements"
        )
    found = json.loads(said)
    version = str(found["version"])
    if version.split("+")[0] != wanted.version.split("+")[0]:
        raise InstallRefusedError(
            f"{wanted.title} is wanted, but what was built is version {version or 'unknown'}; correct version or lock"
        )
    if found["problem"]:
        raise InstallRefusedError(
            f"{wanted.title}: {found['problem']}; update the NVIDIA driver, or choose a build for an older CUDA"
        )
    return Found(version, str(found["devices"]))
