"""A machine with a real systemd: this host's own files, booted in a container; what is written there goes to memory.

::

    with Machine(shared=tmp_path) as machine:
        machine.run("systemctl", "status")

It shares the host's network, and the folder ``shared`` under its own path. Root and the Debian package systemd-container are
needed; without them the test fails and says so.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw_agent.process.cgroup import Cgroup, hierarchies
from llmgw_testing.wait import wait_until

ROOT = Path(__file__).parents[2]
BOOT_SECONDS = 60.0
#: The mounts are the container's alone, and vanish with it.
_BOOT = """
set -e
mount -t tmpfs tmpfs {work}
mkdir {work}/upper {work}/work {work}/root
mount -t overlay overlay -o lowerdir=/,upperdir={work}/upper,workdir={work}/work {work}/root
if [ -n "{cgroup}" ]; then echo $$ > {cgroup}/cgroup.procs; fi
exec systemd-nspawn --quiet --directory={work}/root --machine={name} --register=no --keep-unit --link-journal=no {binds} \
    /lib/systemd/systemd --unit=basic.target --show-status=no
"""


class Machine:
    def __init__(self, shared: Path) -> None:
        assert os.geteuid() == 0, "a container with systemd needs root"
        assert shutil.which("systemd-nspawn"), "systemd-nspawn is missing: apt-get install systemd-container"
        self.shared = shared
        self._name = f"llmgw-{secrets.token_hex(4)}"
        self._work = Path(tempfile.mkdtemp(prefix=self._name))
        self._console = self._work.with_suffix(".log")
        self._cgroup = self._own_cgroup()
        paths = dict.fromkeys((ROOT, Path(sys.base_prefix), Path(sys.prefix).resolve()))
        binds = [f"--bind={shared}", *(f"--bind-ro={path}" for path in paths if path != Path("/usr"))]
        cgroup = self._cgroup.folder if self._cgroup is not None else ""
        script = _BOOT.format(work=self._work, name=self._name, binds=" ".join(binds), cgroup=cgroup)
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )
        self._init = 0

    def _own_cgroup(self) -> Cgroup | None:
        """So that everything in the container can be ended for certain."""
        for hierarchy in hierarchies():
            if hierarchy.kind == "2":
                folder = hierarchy.mount / self._name
                folder.mkdir()
                return Cgroup(folder)
        return None

    def __enter__(self) -> Self:
        try:
            wait_until(self._booted, within=BOOT_SECONDS, what="systemd in the container", every=0.1)
        except BaseException:
            sys.stderr.write(self._console.read_text(errors="replace"))
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _booted(self) -> bool:
        assert self._process.poll() is None, f"systemd-nspawn ended:\n{self._console.read_text(errors='replace')}"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        self._init = int(children[0])
        return self.call("systemctl", "is-active", "basic.target").stdout.strip() == "active"

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._cgroup is not None:
            cgroup = self._cgroup

            def gone() -> bool:
                cgroup.kill()
                return cgroup.remove()

            wait_until(gone, within=BOOT_SECONDS, what="the container to end")
        self._work.rmdir()
        self._console.unlink()

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in the container as root, outside of any service."""
        enter = ["nsenter", "--target", str(self._init), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False, timeout=BOOT_SECONDS)

    def run(self, *argv: str) -> str:
        """What the program says; it must succeed."""
        done = self.call(*argv)
        assert done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout
