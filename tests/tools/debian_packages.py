"""Makes sure that the Debian packages listed in a file are installed: ``python debian_packages.py LIST``.

Installs what is missing when run as root; otherwise prints the command and fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def wanted(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def missing(packages: list[str]) -> list[str]:
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in answer.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def main(path: str) -> int:
    packages = wanted(Path(path).read_text())
    if shutil.which("dpkg-query") is None:
        print(f"The tests use tools that this script knows as Debian packages only: {' '.join(packages)}", file=sys.stderr)
        return 1
    absent = missing(packages)
    if not absent:
        return 0
    install = ["apt-get", "install", "-y", "--no-install-recommends", *absent]
    if os.geteuid() != 0:
        print(f"The tests need more Debian packages. Run: sudo {' '.join(install)}", file=sys.stderr)
        return 1
    print(f"installing {' '.join(absent)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    return subprocess.run(
        [*install[:1], "-qq", *install[1:]], check=False, env=environment, stdout=subprocess.DEVNULL
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
