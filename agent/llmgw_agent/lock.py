"""One agent per state folder, and one per node name on a host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from llmgw_base.config import ConfigError


class StateLock:
    """Held until :meth:`release`, or until the process ends, however it ends."""

    def __init__(self, state_dir: Path) -> None:
        """Makes the folder if need be.

        Raises:
            ConfigError: the folder cannot be made or written, or another agent uses it.
        """
        path = state_dir / "lock"
        try:
            state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"state_dir: {state_dir} cannot be used: {error.strerror}; create it for the agent's user or set another one"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise ConfigError(
                f"state_dir: {state_dir} is in use by another agent (pid {holder or 'unknown'}); stop it or set another folder"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


class NameLock:
    """One agent per cluster and node name on a host: an abstract socket (unix(7)), which the kernel lets one process have and
    frees at its end.
    """

    def __init__(self, cluster_id: str, node: str) -> None:
        # A name has room for 107 bytes.
        self._name = "\0llmgw-agent/" + hashlib.sha256(f"{cluster_id}/{node}".encode()).hexdigest()
        self._node = node
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def __enter__(self) -> None:
        """Raises ConfigError if another agent of this host goes by that name."""
        try:
            self._socket.bind(self._name)
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"node.name: another agent on this host is already named {self._node!r}; stop it or set another name"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._socket.close()
