"""One endpoint: its connection, made when needed, vetted, and thrown away when it is of no use any more."""

from __future__ import annotations

import logging
from pathlib import Path

from llmgw_base.clock import Clock
from llmgw_base.config import TlsSection
from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd import version
from llmgw_base.etcd.errors import StoreRefusedError, StoreUnsuitableError
from llmgw_base.etcd.refusal import Reaction
from llmgw_base.etcd.target import Target
from llmgw_base.etcd.wire import CallFailedError, Credentials, Link, answer, tls_credentials

#: Seconds to connect, with TLS and the question for the version.
CONNECT_TIMEOUT = 1.5

logger = logging.getLogger(__name__)


class UnreachableError(Exception):
    """No connection to this endpoint; nothing was sent. Stays inside this package."""


class Member:
    """Hands out a live link to one endpoint."""

    def __init__(self, target: Target, tls: TlsSection | None, *, clock: Clock, trial: bool) -> None:
        self.endpoint = target.endpoint
        self._target = target
        self._tls = tls
        self._clock = clock
        self._trial = trial
        self._link: Link | None = None
        self._warned = ""

    async def dial(self) -> Link:
        """A link that is connected, as far as can be known without sending, to a server of a version that can be trusted.

        Raises:
            UnreachableError: no connection in time.
            StoreUnsuitableError: the server's version has known faults, and this is no trial.
            StoreRefusedError: a certificate file cannot be read.
        """
        link = self._link or self._open()
        if not (link.vetted and link.connected):
            await self.probe(link)
        return link

    async def probe(self, link: Link) -> None:
        """Asks for the version, which is also a sign of life.

        Raises:
            UnreachableError: no answer in time; the link was dropped.
            StoreUnsuitableError: as in :meth:`dial`.
        """
        try:
            status = await answer(lambda: link.status(pb.StatusRequest(), timeout=CONNECT_TIMEOUT))
        except CallFailedError as failure:
            if failure.verdict.reaction in (Reaction.UNKNOWN, Reaction.NOT_DONE):
                await self.drop(link)
                raise UnreachableError(failure.text) from None
            # A server that lets only some users see its status is a recent one.
            logger.debug("etcd at %s does not tell its version: %s", self.endpoint, failure.text)
        else:
            self._judge(status.version)
        link.vetted = True
        link.heard = self._clock.monotonic()

    def has(self, link: Link) -> bool:
        return self._link is link

    async def drop(self, link: Link) -> None:
        """Closes a link that is of no use; its calls and streams break. The next :meth:`dial` makes a new one."""
        if self._link is link:
            self._link = None
        await link.close()

    async def close(self) -> None:
        if self._link is not None:
            await self.drop(self._link)

    def _open(self) -> Link:
        """Certificates are read anew for every link, so that renewed ones are taken up."""
        self._link = Link(self._target, self._credentials() if self._target.secure else None)
        return self._link

    def _credentials(self) -> Credentials:
        if self._tls is None:
            return tls_credentials(None, None, None)
        return tls_credentials(_read(self._tls.ca), _read(self._tls.key), _read(self._tls.cert))

    def _judge(self, text: str) -> None:
        fault = version.fault(text)
        if fault is None:
            return
        if not self._trial:
            raise StoreUnsuitableError(
                f"etcd at {self.endpoint} is version {text}: {fault}; use 3.5.16 or newer, or 3.6 (or 3.4.22 and newer)"
            )
        if self._warned != text:
            self._warned = text
            logger.warning("etcd at %s is version %s, good for trying out only: %s", self.endpoint, text, fault)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreRefusedError(f"etcd.tls: {path} cannot be read: {error.strerror}") from error
