"""Whether a wish has come true, is still on its way, or will not come true. Pure: views in, verdicts out.

What ends a wait:

=============================  =====================================================================================
the model is Ready             done, once the coordinator has seen the change and no replica is left over; see below
the model is gone              done for a removal; a failure for any other wish
Pending, Degraded              a failure once the state and reason have not changed for ``settle`` and nothing moves
Failed                         a failure once that has not changed for a short while: it may stem from the spec before
a replica fails again          a failure after ``MAX_RESTARTS`` restarts within the wait, for it will go on like that
=============================  =====================================================================================

A coordinator may answer from a moment before the change reached it or the leader. So a view of an older generation counts
for nothing, and one that says Ready while replicas still run an older generation must say so for ``STALE_SECONDS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from llmgw_ctl.api import ModelView, ReplicaView
from llmgw_ctl.views.replicas import place_of

#: States of a replica that is on its way somewhere, so that waiting makes sense.
MOVING = frozenset({"Assigned", "Installing", "Fetching", "Starting", "Probing", "Draining"})
FAILED_SETTLE = 3.0
STALE_SECONDS = 1.5
MAX_RESTARTS = 3


class Wish(Enum):
    SERVE = "serve"
    REMOVE = "remove"


class Outcome(Enum):
    WAITING = "waiting"
    FULFILLED = "fulfilled"
    HOPELESS = "hopeless"


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    text: str = ""


@dataclass(slots=True)
class Judge:
    """Follows one model through successive views. ``settle`` is in seconds; ``generation`` is that of the wished spec."""

    name: str
    wish: Wish
    settle: float = 10.0
    generation: int = 0
    _since: float = 0.0
    _seen: tuple[str, str] | None = None
    _restarts: dict[str, int] = field(default_factory=dict)
    _last_reason: str = ""

    def look(self, view: ModelView | None, now: float) -> Verdict:
        """``view`` is None when the coordinator no longer knows the model; ``now`` is monotonic, in seconds."""
        if view is None:
            if self.wish is Wish.REMOVE:
                return Verdict(Outcome.FULFILLED, "removed")
            return Verdict(Outcome.HOPELESS, "it was removed by someone else meanwhile")
        if self.wish is Wish.REMOVE:
            return Verdict(Outcome.WAITING, describe(view))
        self._note(view, now)
        return self._judge(view, now)

    @property
    def last_reason(self) -> str:
        """The last reason that any view gave, for the message of a timeout."""
        return self._last_reason

    def _note(self, view: ModelView, now: float) -> None:
        seen = (view.get("state", ""), reason_of(view))
        if seen != self._seen:
            self._seen, self._since = seen, now
        self._last_reason = seen[1] or self._last_reason
        for replica in view.get("replicas", []):
            self._restarts.setdefault(replica.get("id", ""), replica.get("restarts", 0))

    def _fulfilled(self, view: ModelView, now: float) -> bool:
        replicas, wanted = view.get("replicas", []), view.get("wanted", 0)
        if view.get("state") not in ("Ready", "Scaled to zero") or view.get("ready", 0) < wanted or len(replicas) > wanted:
            return False
        if sum(1 for each in replicas if each.get("url")) < wanted:
            return False  # an engine is ready a moment before its address is published for the routers
        newest = all(each.get("generation", 0) >= self.generation for each in replicas)
        return newest or now - self._since >= STALE_SECONDS

    def _judge(self, view: ModelView, now: float) -> Verdict:
        state, wanted, ready = view.get("state", ""), view.get("wanted", 0), view.get("ready", 0)
        if generation_of(view) < self.generation:
            return Verdict(Outcome.WAITING, "waiting until the coordinator has seen the change")
        if self._fulfilled(view, now):
            return Verdict(Outcome.FULFILLED, f"{ready} of {wanted} ready" if wanted else "scaled to zero")
        if state == "Removing":
            return Verdict(Outcome.HOPELESS, "it is being removed")
        for replica in view.get("replicas", []):
            again = replica.get("restarts", 0) - self._restarts.get(replica.get("id", ""), 0)
            if again >= MAX_RESTARTS:
                why = replica.get("reason") or self._last_reason or "no reason was given"
                return Verdict(Outcome.HOPELESS, f"replica {replica.get('id')} failed {again} times: {why}")
        patience = {"Failed": min(FAILED_SETTLE, self.settle), "Pending": self.settle, "Degraded": self.settle}.get(state)
        if patience is not None and not moves(view) and now - self._since >= patience:
            return Verdict(Outcome.HOPELESS, reason_of(view) or f"it is {state} and no reason was given")
        return Verdict(Outcome.WAITING, describe(view))


def generation_of(view: ModelView) -> int:
    return int((view.get("spec") or {}).get("generation") or 0)


def moves(view: ModelView) -> bool:
    return any(replica.get("state") in MOVING for replica in view.get("replicas", []))


def reason_of(view: ModelView) -> str:
    """The model's reason, or else that of its first replica that has one."""
    return view.get("reason") or next((each["reason"] for each in view.get("replicas", []) if each.get("reason")), "")


def describe(view: ModelView) -> str:
    """One line: ``Progressing, 0 of 1 ready: m-x7k2p on node1 Starting``."""
    parts = f"{view.get('state', '?')}, {view.get('ready', 0)} of {view.get('wanted', 0)} ready"
    busy = [_replica(each) for each in view.get("replicas", []) if each.get("state") != "Ready"]
    detail = ", ".join(busy[:3]) + (f" and {len(busy) - 3} more" if len(busy) > 3 else "") or view.get("reason", "")
    return f"{parts}: {detail}" if detail else parts


def _replica(replica: ReplicaView) -> str:
    text = f"{replica.get('id')} on {place_of(replica)} {replica.get('state')}"
    return f"{text} ({replica['reason']})" if replica.get("reason") else text
