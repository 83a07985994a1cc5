"""What is kept on disk about one shard, and what the cluster gets to see of it. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from llmgw_agent.process.logmon import NAME
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.machine import Move
from llmgw_agent.shard.record import shard_record
from llmgw_agent.shard.state import SavedShard
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, EndpointRecord, ShardRole, ShardState, Timings

DISK = "state"
DRAINED = "taken out of routing by the operator; `llmgwctl replica undrain` brings it back"
logger = logging.getLogger(__name__)


class Ledger:
    def __init__(self, context: Context, saved: SavedShard) -> None:
        self._context = context
        self._saved = saved
        self._move = Move(0.0, ShardState.ASSIGNED, "")
        self._next_attempt_at: float | None = None
        self._peak_rss = 0
        self._prepared = Timings()
        """Of the attempt that is being prepared."""
        self._entered = 0.0
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
        self._time(move)
        self._move = move
        reason = {"reason": move.reason} if move.reason else {}
        bad = move.state in (ShardState.FAILED, ShardState.REJECTED, ShardState.SUSPECT)
        fields = {"shard": self.wish.shard, "state": move.state, **reason}
        level = logging.WARNING if bad else logging.DEBUG if progress else logging.INFO
        logger.log(level, "shard is now %s", move.state, extra={"fields": fields})
        self.publish()

    def _time(self, move: Move) -> None:
        """How long it took until engine and weights were there."""
        left = self._move.state
        if move.state is left:
            return
        took, self._entered = move.at - self._entered, move.at
        if move.state is ShardState.INSTALLING:
            self._prepared = Timings()
        elif left is ShardState.INSTALLING:
            self._prepared = self._prepared.model_copy(update={"install": took})
        elif left is ShardState.FETCHING:
            self._prepared = self._prepared.model_copy(update={"fetch": took})

    @property
    def prepared(self) -> Timings:
        """The phases before the engine's start, as far as they are over."""
        return self._prepared

    @property
    def next_attempt_at(self) -> float | None:
        return self._next_attempt_at if self._move.state is ShardState.FAILED else None

    @property
    def peak_rss_bytes(self) -> int:
        return self._peak_rss

    def expect_attempt(self, at: float | None) -> None:
        """When the next attempt follows a failure (Unix time); told with the next move."""
        self._next_attempt_at = at

    def peak_rss(self, peak: int) -> None:
        """Told when it grew enough to matter."""
        if peak > self._peak_rss * 1.05:
            self._peak_rss = peak
            self.publish()

    def gpu_memory(self, gpus: Mapping[str, int]) -> None:
        """Bytes that the shard's processes have now, by GPU; told when a peak grew enough to matter."""
        known = self._saved.peak_gpu_bytes
        if any(size > known.get(gpu, 0) * 1.05 for gpu, size in gpus.items()):
            peaks = {gpu: max(known.get(gpu, 0), gpus.get(gpu, 0)) for gpu in {**known, **gpus}}
            self.change(peak_gpu_bytes=peaks)
            self.publish()

    def tokens_per_second(self, rate: float) -> None:
        """A rate that was measured; told when it is higher than all before by enough to matter."""
        if rate > (self._saved.tokens_per_second or 0.0) * 1.05:
            self.change(tokens_per_second=round(rate, 1))
            self.publish()

    def begin_attempt(self) -> None:
        """What was measured of the attempt before is over."""
        self._peak_rss = 0
        self.change(timings=self._prepared, peak_gpu_bytes={}, tokens_per_second=None)

    def drain(self, *, drained: bool) -> None:
        """Whether an operator keeps it out of routing, from now on and over restarts of the agent."""
        self.change(drained=drained)
        if self._saved.endpoint is not None and self._move.state is ShardState.READY:
            self._put(self._saved.endpoint)
        self.publish()

    def publish(self) -> None:
        record = shard_record(
            self._saved,
            self._move.state,
            self._move.reason or (DRAINED if self._saved.drained and self._move.state is ShardState.READY else ""),
            now=self._context.clock.wall(),
            log_path=str(self._context.log_folder(self.wish.shard) / NAME),
            next_attempt_at=self.next_attempt_at,
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
        if self.wish.role is ShardRole.WORKER:
            return  # the endpoint under the replica's name is its head's, which may be on this node by now
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
        if self._saved.drained:
            endpoint = endpoint.model_copy(update={"draining": True})
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
