"""What is kept on disk about one shard, and what the cluster gets to see of it. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from llmgw_agent.process.logmon import NAME
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.machine import Move
from llmgw_agent.shard.record import shard_record
from llmgw_agent.shard.state import SavedShard
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, EndpointRecord, ShardState

DISK = "state"
logger = logging.getLogger(__name__)


class Ledger:
    def __init__(self, context: Context, saved: SavedShard) -> None:
        self._context = context
        self._saved = saved
        self._move = Move(0.0, ShardState.ASSIGNED, "")
        self._next_attempt_at: float | None = None
        self._peak_rss = 0
        self._save()
        self.publish()

    @property
    def saved(self) -> SavedShard:
        return self._saved

    @property
    def wish(self) -> AssignmentRecord:
        return self._saved.assignment

    # --- on disk ------------------------------------------------------------------------------------------------------

    def change(self, **fields: Any) -> None:
        """Changes fields of :class:`SavedShard`."""
        self._saved = self._saved.model_copy(update=fields)
        self._save()

    def heal(self) -> None:
        """Writes again what a full disk kept from being written."""
        if DISK in self._context.problems:
            self._save()

    def close(self, *, finished: bool) -> None:
        """Nothing of the shard is left: forgets it, on disk and in the cluster. ``finished``: its epoch must not come back."""
        state, wish = self._context.state, self.wish
        if finished:
            self._write(lambda: state.finish(wish.shard, wish.epoch))
        self._write(lambda: state.remove(wish.shard))
        self.withdraw()
        self.withdraw_record()

    # --- in the cluster -----------------------------------------------------------------------------------------------

    def moved(self, move: Move) -> None:
        """Tells of a move of the machine."""
        progress = move.state is self._move.state is ShardState.FETCHING
        self._move = move
        reason = {"reason": move.reason} if move.reason else {}
        bad = move.state in (ShardState.FAILED, ShardState.REJECTED, ShardState.SUSPECT)
        fields = {"shard": self.wish.shard, "state": move.state, **reason}
        level = logging.WARNING if bad else logging.DEBUG if progress else logging.INFO
        logger.log(level, "shard is now %s", move.state, extra={"fields": fields})
        self.publish()

    def expect_attempt(self, at: float | None) -> None:
        """When the next attempt follows a failure (Unix time); told with the next move."""
        self._next_attempt_at = at

    def peak_rss(self, peak: int) -> None:
        """Told when it grew enough to matter."""
        if peak > self._peak_rss * 1.05:
            self._peak_rss = peak
            self.publish()

    def publish(self) -> None:
        record = shard_record(
            self._saved,
            self._move.state,
            self._move.reason,
            now=self._context.clock.wall(),
            log_path=str(self._context.log_folder(self.wish.shard) / NAME),
            next_attempt_at=self._next_attempt_at if self._move.state is ShardState.FAILED else None,
            peak_rss_bytes=self._peak_rss,
        )
        self._context.publisher.put(self._record_key, record.encode())

    def withdraw_record(self) -> None:
        self._context.publisher.remove(self._record_key)

    def offer(self, endpoint: EndpointRecord) -> None:
        """Routers may send requests; a later life of the agent knows it too."""
        if endpoint != self._saved.endpoint:
            self.change(endpoint=endpoint)
        self._put(endpoint)

    def offer_draining(self) -> None:
        """Routers send no new requests and leave the running ones alone."""
        if self._saved.endpoint is not None:
            self._put(self._saved.endpoint.model_copy(update={"draining": True}))

    def suspend(self) -> None:
        """Routers leave it out for now; the endpoint stays known.

        An endpoint that vanishes unflagged is taken for lost, and routers would try it for a while.
        """
        endpoint = self._saved.endpoint
        words = endpoint.model_copy(update={"draining": True}).encode() if endpoint is not None else None
        self._context.publisher.remove(self._endpoint_key, last_words=words)

    def withdraw(self) -> None:
        """There is no endpoint any more."""
        self.suspend()
        if self._saved.endpoint is not None:
            self.change(endpoint=None)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _record_key(self) -> str:
        return keyspace.shard(self._context.node, self.wish.shard)

    @property
    def _endpoint_key(self) -> str:
        return keyspace.endpoint(self._context.node, self.wish.replica)

    def _put(self, endpoint: EndpointRecord) -> None:
        self._context.publisher.put(self._endpoint_key, endpoint.encode(), leased=True)

    def _save(self) -> None:
        self._write(lambda: self._context.state.save(self._saved))

    def _write(self, write: Callable[[], None]) -> None:
        """A full disk stops no engine: it is said, and the next write tries again."""
        problems = self._context.problems
        try:
            write()
        except OSError as error:
            if DISK not in problems:
                logger.error("cannot write the state of shards", extra={"fields": {"cause": str(error)}})  # noqa: TRY400
            problems[DISK] = f"state folder {self._context.config.state_dir}: {error.strerror}; free the disk"
        else:
            problems.pop(DISK, None)
