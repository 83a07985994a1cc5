"""The token that stands for user and password, fetched when needed and again when etcd forgot it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.errors import StoreAuthError
from llmgw_base.etcd.wire import CallFailedError, Link, answer

#: Seconds; etcd hashes the password on purpose slowly.
AUTHENTICATE_TIMEOUT = 5.0

logger = logging.getLogger(__name__)


class Tokens:
    """One user's token. Without a user there is none, and all methods do nothing."""

    def __init__(self, user: str | None, password_file: Path | None) -> None:
        self.user = user
        self._password_file = password_file
        self._token: str | None = None
        self._unneeded = False
        self._lock = asyncio.Lock()

    async def get(self, link: Link) -> str | None:
        """
        Raises:
            CallFailedError: wrong user or password, or no answer.
            StoreAuthError: the password file cannot be read.
        """
        if self.user is None:
            return None
        async with self._lock:
            if self._token is None and not self._unneeded:
                request = pb.AuthenticateRequest(name=self.user, password=self._password())
                try:
                    response = await answer(lambda: link.authenticate(request, timeout=AUTHENTICATE_TIMEOUT))
                except CallFailedError as failure:
                    if "authentication is not enabled" not in failure.text:
                        raise
                    logger.warning("etcd.user is set, but etcd does not ask for users: its authentication is not enabled")
                    self._unneeded = True
                else:
                    self._token = response.token
            return self._token

    def forget(self, token: str | None) -> None:
        """``token`` was not accepted; unless there is a newer one already, the next :meth:`get` fetches one."""
        if self._token == token:
            self._token = None
            self._unneeded = False

    def _password(self) -> str:
        """Read each time, so that a changed password is taken up."""
        assert self._password_file is not None
        try:
            return self._password_file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise StoreAuthError(f"etcd.password_file: {self._password_file} cannot be read: {error}") from error
