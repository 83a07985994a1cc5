"""Where an archive lies on this node: a file, one of a folder by its digest, or fetched as weights are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.weights import Progress, WeightsError, WeightStore
from llmgw_agent.weights.hashing import stream_digest
from llmgw_agent.weights.sources import redacted


class Archives:
    """``weights``: fetches what has an address, once however many ask, resumed, verified, from other nodes of the fleet too."""

    def __init__(self, weights: WeightStore | None = None) -> None:
        self._weights = weights

    @contextlib.asynccontextmanager
    async def get(
        self, title: str, location: str, sha256: str, hear: Callable[[Progress], None] = lambda _: None
    ) -> AsyncIterator[Path]:
        """The file for as long as the block lasts; whoever unpacks it compares the digest.

        Raises:
            InstallRefusedError, InstallFailedError
        """
        if location.startswith("/"):
            yield await asyncio.to_thread(_local, title, Path(location), sha256)
            return
        if self._weights is None:
            raise InstallRefusedError(
                f"{title}: {shown(location)} would have to be fetched; copy it to this node and name its path"
            )
        source = f"{location}#sha256={sha256}"
        try:
            found = await self._weights.ensure(source, progress=hear, pin=title)
        except WeightsError as error:
            kind = InstallFailedError if error.recoverable else InstallRefusedError
            raise kind(f"{title}: its archive cannot be fetched: {error}") from error
        try:
            yield found.path
        finally:
            # At the agent's next start all such pins go.
            with contextlib.suppress(WeightsError):
                await self._weights.release(source, title)


def _local(title: str, path: Path, sha256: str) -> Path:
    try:
        if not path.is_dir():
            if not path.exists():
                raise InstallRefusedError(f"{title}: archive {path}: no such file on this node; copy it there")
            return path
        for each in sorted(path.iterdir()):
            if each.is_file() and _sha256(each) == sha256:
                return each
    except OSError as error:
        raise InstallFailedError(
            f"{title}: archive {path} cannot be read: {error.strerror}; correct its permissions"
        ) from error
    raise InstallRefusedError(f"{title}: no file in {path} has the sha256 {sha256}; copy the archive there or correct sha256")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return stream_digest(file, "sha256").hex


def shown(location: str) -> str:
    """For messages: addresses carry passwords and signatures."""
    return location if location.startswith("/") else redacted(location)
