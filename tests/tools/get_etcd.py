"""Gets the etcd versions that the tests run against: ``python get_etcd.py DEST``.

They come from Debian's packages, each from the release that has it, and are unpacked under DEST (``etcd-3.4/usr/bin/etcd``
and ``etcdctl``, likewise 3.5) without installing anything; no root needed. The mirror is the one that this machine's own apt
sources name. Needs nothing but the standard library; returns at once when everything is there.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("etcd-server", "etcd-client")
TOOLS = ("apt-get", "dpkg-deb", "dpkg")
DEBIAN = {"bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable"}


@dataclass(frozen=True)
class Wanted:
    series: str
    suite: str


WANTED = (Wanted("3.4", "bookworm"), Wanted("3.5", "trixie"))


class CannotGetError(Exception):
    """This machine cannot supply an etcd; the message says why and what to do."""


def parse_mirror(targets: str) -> str | None:
    """The first Debian archive in lines of ``URI|RELEASE|COMPONENT``, as apt prints its own configuration."""
    for line in targets.splitlines():
        uri, release, component = (part.strip() for part in line.split("|", 2))
        if component == "main" and release in DEBIAN:
            return uri
    return None


def source_line(mirror: str, suite: str, keyrings: Path = Path("/usr/share/keyrings")) -> str:
    """Mirrors carry Debian's own signatures; without Debian's keyring in its usual place apt's trusted keys must do."""
    found = [path for path in (keyrings / f"debian-archive-keyring.{end}" for end in ("pgp", "gpg")) if path.exists()]
    options = f"[signed-by={found[0]}] " if found else ""
    return f"deb {options}{mirror} {suite} main\n"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        last = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise CannotGetError(f"{' '.join(map(str, command[:1]))} failed with status {done.returncode}:\n  {last}")
    return done.stdout


def find_mirror() -> str:
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        raise CannotGetError(f"{', '.join(absent)} not found: this script takes etcd from Debian's packages")
    listing = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    mirror = parse_mirror(run("apt-get", "indextargets", "--no-release-info", "--format", listing, "Created-By: Packages"))
    if mirror is None:
        raise CannotGetError(f"no Debian archive (one of {', '.join(sorted(DEBIAN))}) among the sources of apt on this machine")
    return mirror


def get(wanted: Wanted, mirror: str, dest: Path) -> None:
    """Downloads with an apt that has its own sources, lists, cache and state, and moves the unpacked tree into place."""
    with tempfile.TemporaryDirectory(prefix="get-etcd-", dir=dest) as name:
        work = Path(name)
        for folder in ("lists/partial", "cache/archives/partial", "state", "parts", "debs", "tree"):
            (work / folder).mkdir(parents=True)
        (work / "state/status").touch()
        (work / "sources.list").write_text(source_line(mirror, wanted.suite))
        options = {
            "Dir::Etc::sourcelist": work / "sources.list",
            "Dir::Etc::sourceparts": work / "parts",
            "Dir::Etc::preferencesparts": work / "parts",
            "Dir::State": work / "state",
            "Dir::State::lists": work / "lists",
            "Dir::State::status": work / "state/status",
            "Dir::Cache": work / "cache",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "APT::Update::Error-Mode": "any",
        }
        apt: list[str | Path] = ["apt-get", "-qq"]
        for key, value in options.items():
            apt += ["-o", f"{key}={value}"]
        run(*apt, "update")
        run(*apt, "download", *PACKAGES, cwd=work / "debs")
        for package in sorted((work / "debs").glob("*.deb")):
            run("dpkg-deb", "-x", package, work / "tree")
        version = run(work / "tree/usr/bin/etcd", "--version").split()[2]
        if not version.startswith(wanted.series + "."):
            raise CannotGetError(f"Debian {wanted.suite} has etcd {version} now, not {wanted.series}; name another suite here")
        target = dest / f"etcd-{wanted.series}"
        shutil.rmtree(target, ignore_errors=True)
        try:
            (work / "tree").rename(target)
        except OSError:
            if not complete(wanted, dest):  # else another run of this script was faster
                raise
        print(f"etcd {version} is in {target}", flush=True)


def complete(wanted: Wanted, dest: Path) -> bool:
    binaries = dest / f"etcd-{wanted.series}/usr/bin"
    return all(os.access(binaries / name, os.X_OK) for name in ("etcd", "etcdctl"))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    dest = Path(arguments[0]).resolve()
    dest.mkdir(parents=True, exist_ok=True)
    missing = [each for each in WANTED if not complete(each, dest)]
    if not missing:
        return 0
    try:
        mirror = find_mirror()
        print(f"getting etcd {', '.join(each.series for each in missing)}", flush=True)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(get, each, mirror, dest) for each in missing]:
                done.result()
    except CannotGetError as error:
        versions = " and ".join(f"{each.series} ({dest}/etcd-{each.series}/usr/bin)" for each in missing)
        print(f"cannot get etcd: {error}\nPut etcd and etcdctl of {versions} there by hand.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
