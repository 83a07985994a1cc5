"""Builds the fake ``libnvidia-ml.so.1`` and points helper processes at it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"
_FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-truncation", "-Wl,-soname,libnvidia-ml.so.1")


def library_folder() -> Path:
    """The folder with the library, built on first use. gcc is needed; without it the test fails and says so."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"llmgw-fake-nvml-{os.getuid()}-{digest}"
    if (folder / "libnvidia-ml.so.1").exists():
        return folder
    with tempfile.TemporaryDirectory(dir=tempfile.gettempdir()) as work:
        made = Path(work) / "libnvidia-ml.so.1"
        done = subprocess.run(
            ["gcc", *_FLAGS, "-o", str(made), str(SOURCE), "-lpthread"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"gcc could not build the fake NVML:\n{done.stderr}"
        folder.mkdir(exist_ok=True)
        # Atomic: another test process may build at the same time.
        made.replace(folder / "libnvidia-ml.so.1")
    return folder


class FakeNvml:
    """A machine's GPUs as helper processes started from now on see them. Break it while running with :meth:`add`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str) -> None:
        self.path = folder / "nvml-profile.txt"
        self.path.write_text(profile)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library_folder()))
        monkeypatch.setenv("FAKE_NVML", str(self.path))

    def add(self, *lines: str) -> None:
        """Appends lines; the last line of a key wins, also in processes that run already."""
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
