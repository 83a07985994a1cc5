"""What the store tells: progress, weights that are here, entries of its list, needs of a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .model_facts import ModelFacts

Phase = Literal["waiting", "resolving", "fetching", "verifying", "ready"]


@dataclass(frozen=True)
class Progress:
    """How far a source is. ``bytes_fetched`` came over the network in this attempt; ``rate`` is in bytes per second.

    ``waits_for``: the node that fetches the same and will give it to this one.
    """

    source: str
    phase: Phase
    bytes_done: int
    bytes_total: int | None
    bytes_fetched: int
    rate: float
    files_done: int
    files_total: int
    place: str
    waits_for: str = ""


@dataclass(frozen=True)
class Weights:
    """Weights that are here: ``path`` is the file to load (the first part of a split one) or the folder.

    ``digests`` maps each file's path to ``sha256:<hex>`` or ``git:<hex>``; it is empty for what is used in place.
    ``facts`` is None where no header is understood, and ``facts_problem`` then says why.
    """

    source: str
    key: str
    path: Path
    total_bytes: int
    digests: dict[str, str]
    revision: str | None
    facts: ModelFacts | None
    facts_problem: str | None


@dataclass(frozen=True)
class Stored:
    """An entry of :meth:`WeightStore.list`. Times are Unix seconds; ``content`` is a digest of all names and contents."""

    source: str
    key: str
    path: Path
    total_bytes: int
    files: int
    revision: str | None
    fetched_at: float
    last_used_at: float
    pinned_by: list[str]
    facts: ModelFacts | None
    content: str


@dataclass(frozen=True)
class Preflight:
    """``needed`` bytes are still to be fetched (None: the server does not say) and ``free`` may be used for them."""

    needed: int | None
    free: int
    total: int | None

    @property
    def fits(self) -> bool:
        return self.needed is None or self.needed <= self.free
