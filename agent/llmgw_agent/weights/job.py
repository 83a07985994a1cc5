"""One source being made ready, for all who asked for it."""

from __future__ import annotations

import asyncio

from llmgw_proto.digests import Digest

from .early import Judge
from .peers import Turn
from .receive import Meter
from .views import Phase, Progress, Weights


class Job:
    """``meters`` by path of file; ``waiters`` counts who awaits ``task``, and the last who leaves cancels it."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge
        self.task: asyncio.Task[Weights]
        self.waiters = 0
        self.phase: Phase = "waiting"
        self.meters: dict[str, Meter] = {}
        self.turn: Turn | None = None
        self.digests: list[Digest] = []
        """Of the files that are fetched, when all are known."""

    def snapshot(self, source: str, rate: float) -> Progress:
        meters = list(self.meters.values())
        done = [each for each in meters if each.total is not None and each.on_disk == each.total and not each.verifying]
        busy = next((each.place for each in meters if each.place and each not in done), "")
        sizes = [each.total for each in meters]
        known = sum(each for each in sizes if each is not None) if sizes and None not in sizes else None
        hashing = self.phase == "fetching" and any(each.verifying for each in meters)
        return Progress(
            source=source,
            phase="verifying" if hashing and all(each.verifying or each in done for each in meters) else self.phase,
            bytes_done=sum(each.on_disk for each in meters),
            bytes_total=known,
            bytes_fetched=sum(each.fetched for each in meters),
            rate=rate,
            files_done=len(done),
            files_total=len(meters),
            place=busy,
            waits_for=self.turn.waits_for if self.turn is not None else "",
        )
