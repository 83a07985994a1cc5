"""Hosts with networks of their own on one machine: network namespaces on a bridge. Needs root.

::

    with Hosts("a", "b") as hosts:
        subprocess.run([*hosts.inside("a"), "ping", hosts.address("b")])
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class Hosts:
    """Each has one interface, ``fab0``. This process's own network reaches them all, and they reach it at ``gateway``."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._tag = f"{os.getpid() % 100_000}{random.randrange(1000):03}"
        self._net = f"10.{random.randrange(100, 250)}.{random.randrange(1, 250)}"
        self.gateway = f"{self._net}.254"

    def address(self, name: str) -> str:
        return f"{self._net}.{self._names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """Goes before a command line; the command keeps the process."""
        return ["ip", "netns", "exec", self._space(name)]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for number, name in enumerate(self._names):
            space, port = self._space(name), f"v{self._tag}{number}"
            _ip("netns", "add", space)
            _ip("link", "add", port, "type", "veth", "peer", "name", "fab0", "netns", space)
            _ip("link", "set", port, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "fab0")
            for device in ("lo", "fab0"):
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "route", "add", "default", "via", self.gateway)

    def _remove(self) -> None:
        for name in self._names:
            _ip("netns", "del", self._space(name), check=False)
        _ip("link", "del", self._bridge, check=False)

    @property
    def _bridge(self) -> str:
        return f"b{self._tag}"

    def _space(self, name: str) -> str:
        return f"llmgw-{self._tag}-{name}"


def _ip(*words: str, check: bool = True) -> None:
    argv: Sequence[str] = ("ip", *words)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
