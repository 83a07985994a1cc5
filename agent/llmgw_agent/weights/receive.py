"""One try to get one file from one place, in a worker thread: ask, judge the answer, receive while hashing, verify."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from llmgw_base.clock import Clock
from llmgw_proto.digests import Digest

from .client import Client, Exchange, Target
from .disk import FULL, free_bytes, no_space
from .errors import AccessDeniedError, DigestMismatchError, NoSpaceError, SourceNotFoundError, SourceUnavailableError
from .hashing import Follower
from .layout import Layout, write_atomically
from .resume import PartState, Step, Verdict, judge, request_headers, trusted_length, validator
from .settings import WeightsSettings

_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class FileWish:
    """A file to get: ``part`` names its unfinished download, ``size`` and ``digest`` are what is promised, if anything."""

    path: str
    part: str
    size: int | None
    digest: Digest | None


@dataclass
class Meter:
    """Written by one thread, read by anyone: bytes of this file that are on the disk, and that came over the network."""

    total: int | None = None
    on_disk: int = 0
    fetched: int = 0
    place: str = ""
    verifying: bool = False
    follower: Follower | None = None
    hashed_before: int = 0

    @property
    def work(self) -> int:
        """Bytes fetched and hashed over all tries. It grows as long as anything goes on, also while a file is only verified."""
        follower = self.follower
        return self.fetched + self.hashed_before + (follower.hashed if follower is not None else 0)

    def follow(self, follower: Follower | None) -> None:
        # In this order: whoever reads between sees less for a moment, and never more than there was.
        before, self.follower = self.follower, None
        if before is not None:
            self.hashed_before += before.hashed
        self.follower = follower


@dataclass(frozen=True)
class Fetched:
    """``part`` holds the whole, verified content."""

    digest: Digest
    size: int
    validator: str | None


class Attempt:
    def __init__(
        self,
        wish: FileWish,
        target: Target,
        meter: Meter,
        *,
        client: Client,
        layout: Layout,
        settings: WeightsSettings,
        clock: Clock,
        boot_id: str,
    ) -> None:
        self._wish = wish
        self._target = target
        self._meter = meter
        self._client = client
        self._settings = settings
        self._clock = clock
        self._boot_id = boot_id
        self._root = layout.root
        self._part = layout.part(wish.part)
        self._state_path = layout.part_state(wish.part)
        self._state: PartState | None = None
        self._exchange: Exchange | None = None
        self._aborted = False

    def abort(self) -> None:
        """Makes :meth:`run` end soon with SourceUnavailableError. From any thread."""
        self._aborted = True
        if self._exchange is not None:
            self._exchange.abort()

    def run(self) -> Fetched:
        """Blocking.

        Raises:
            SourceUnavailableError, SourceNotFoundError, AccessDeniedError, AddressRefusedError: this place did not give it.
            DigestMismatchError: it gave something else; nothing of that is kept.
            NoSpaceError: what came so far is kept.
        """
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            return self._run(descriptor)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise self._full(os.fstat(descriptor).st_size) from error
        finally:
            os.close(descriptor)

    def _run(self, descriptor: int) -> Fetched:
        wish = self._wish
        self._meter.place = str(self._target)
        self._state = _read_state(self._state_path)
        offset = trusted_length(os.fstat(descriptor).st_size, self._state, self._boot_id)
        if wish.size is not None and offset > wish.size:
            offset = 0
        headers = request_headers(offset, self._state, self._target.url, promised=wish.digest is not None)
        if headers is None:
            headers, offset = {}, 0
        os.ftruncate(descriptor, offset)
        self._meter.on_disk = offset
        if wish.digest is not None and wish.size is not None and offset == wish.size:
            return self._verify_whole(descriptor, offset)
        with self._client.follow(self._target, headers, promised=wish.digest is not None) as exchange:
            self._exchange = exchange
            verdict = judge(exchange.status, exchange.headers, exchange.length, offset, wish.size)
            if verdict.step is Step.APPEND or verdict.step is Step.RESTART:
                return self._receive(descriptor, exchange, offset if verdict.step is Step.APPEND else 0, verdict.total)
        if verdict.step is Step.COMPLETE:
            return self._verify_whole(descriptor, offset)
        if verdict.step is Step.REPEAT:
            os.ftruncate(descriptor, 0)
            raise SourceUnavailableError(f"{self._target} {verdict.reason}; starting over")
        raise self._refused(verdict, exchange)

    def _refused(self, verdict: Verdict, exchange: Exchange) -> Exception:
        match verdict.step:
            case Step.DENIED:
                return AccessDeniedError(
                    f"{self._target} answers {exchange.status}: access is denied; "
                    "set weights.hub_token (or user and password in the URL), and accept the model's terms on the hub"
                )
            case Step.MISSING:
                return SourceNotFoundError(f"{self._target} does not exist (the server answers {exchange.status})")
            case Step.BUSY:
                after = exchange.headers.get("retry-after", "")
                seconds = float(after) if after.isascii() and after.isdigit() else None
                return SourceUnavailableError(f"{self._target} {verdict.reason}", retry_after=seconds)
            case _:
                return DigestMismatchError(f"{self._target} {verdict.reason}")

    def _receive(self, descriptor: int, exchange: Exchange, offset: int, total: int | None) -> Fetched:
        wish = self._wish
        if total is None and wish.digest is None and (not exchange.framed):
            raise DigestMismatchError(f"{self._target} gives neither a size nor a digest; add #sha256=... to the source")
        if total is None and wish.digest is not None and wish.digest.kind == "git":
            raise DigestMismatchError(f"{self._target} gives no size, which its digest needs")
        os.ftruncate(descriptor, offset)
        before = self._state.givers if self._state is not None and offset else []
        self._state = PartState(
            url=self._target.url,
            validator=validator(exchange.headers),
            total=total,
            givers=list(dict.fromkeys([*before, str(self._target)])),
            flushed=min(offset, self._state.flushed) if self._state is not None else 0,
            boot_id=self._boot_id,
        )
        self._save_state()
        self._meter.total = total
        self._meter.on_disk = offset
        if total is not None:
            free = free_bytes(self._root, self._settings.reserve_bytes)
            if total - offset > free:
                raise no_space(wish.path, total - offset, free, self._root)
        kind = wish.digest.kind if wish.digest is not None else "sha256"
        follower = Follower(descriptor, kind, total or 0)
        self._meter.follow(follower)
        try:
            end = self._pump(descriptor, exchange, offset, follower)
            if self._aborted:
                raise SourceUnavailableError("the download was cancelled")
            if total is not None and end < total:
                raise SourceUnavailableError(f"{self._target} broke off after {end} of {total} bytes")
            self._meter.verifying = True
            return self._judge_digest(follower.finish(), end)
        finally:
            follower.abandon()
            self._meter.follow(None)
            self._note_flushed(follower.flushed)

    def _pump(self, descriptor: int, exchange: Exchange, offset: int, follower: Follower) -> int:
        """Body to file; the offset after the last byte. All that arrived is on the disk when this raises."""
        settings, meter = self._settings, self._meter
        position = offset
        window_start, window_bytes = self._clock.monotonic(), 0
        os.lseek(descriptor, offset, os.SEEK_SET)
        follower.advance(offset)
        while not self._aborted and (block := exchange.read(_BLOCK)):
            view = memoryview(block)
            while view:
                view = view[os.write(descriptor, view) :]
            position += len(block)
            meter.on_disk = position
            meter.fetched += len(block)
            follower.advance(position, block)
            window_bytes += len(block)
            now = self._clock.monotonic()
            if now - window_start >= settings.idle_seconds:
                if window_bytes < settings.min_bytes_per_second * (now - window_start):
                    raise SourceUnavailableError(
                        f"{self._target} is too slow ({window_bytes / (now - window_start):.0f} bytes/s)"
                    )
                window_start, window_bytes = now, 0
            self._note_flushed(follower.flushed)
            if free_bytes(self._root, settings.reserve_bytes) == 0:
                raise self._full(position)
        return position

    def _verify_whole(self, descriptor: int, size: int) -> Fetched:
        self._meter.total = size
        self._meter.verifying = True
        follower = Follower(descriptor, self._wish.digest.kind if self._wish.digest is not None else "sha256", size)
        self._meter.follow(follower)
        try:
            follower.advance(size)
            return self._judge_digest(follower.finish(), size)
        finally:
            follower.abandon()
            self._meter.follow(None)

    def _judge_digest(self, digest: Digest, size: int) -> Fetched:
        promised = self._wish.digest
        if promised is None or digest == promised:
            return Fetched(digest, size, self._state.validator if self._state is not None else None)
        givers = self._state.givers if self._state is not None else []
        self._part.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)
        self._meter.on_disk = 0
        self._meter.verifying = False
        raise DigestMismatchError(
            f"{self._wish.path} from {self._target} is not what was promised: {digest} instead of {promised}",
            mixed=givers != [str(self._target)],
        )

    def _full(self, position: int) -> NoSpaceError:
        total = self._wish.size or self._meter.total
        needed = total - position if total is not None else 1
        return no_space(self._wish.path, max(needed, 1), free_bytes(self._root, self._settings.reserve_bytes), self._root)

    def _note_flushed(self, flushed: int) -> None:
        if self._state is not None and flushed > self._state.flushed:
            self._state = self._state.model_copy(update={"flushed": flushed})
            self._save_state()

    def _save_state(self) -> None:
        assert self._state is not None
        with contextlib.suppress(FileNotFoundError):  # the store was removed under us; the part's own write says so
            write_atomically(self._state_path, self._state.model_dump_json())


def givers_of(state: Path) -> list[str]:
    """Which places an unfinished download came from. Blocking."""
    found = _read_state(state)
    return found.givers if found is not None else []


def _read_state(path: Path) -> PartState | None:
    try:
        return PartState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None  # the part starts over
