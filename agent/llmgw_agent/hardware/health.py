"""The state of live health: which conditions stand, since when, and when they are lifted. Pure: time comes in as an argument.

```
observation ──lasting──▶ raised ──gone for quiet──▶ lifted (CLEARED)
                           │ └────quiet, re-test passed──▶ lifted (RETEST)
                           └──────operator──▶ lifted (any)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmgw_agent.hardware.health_rules import RULES, Lift
from llmgw_agent.hardware.observations import Seen
from llmgw_agent.hardware.problems import Code, Problem

OPERATOR = "operator"


@dataclass
class Condition:
    """One standing condition. Times in seconds of a monotonic clock."""

    subject: str
    observation: str
    detail: str
    since: float
    last: float
    raised: bool

    @property
    def text(self) -> str:
        if self.observation == OPERATOR:
            return self.detail or "set aside by the operator"
        return RULES[self.observation].text.format(detail=self.detail)

    @property
    def code(self) -> str:
        return OPERATOR if self.observation == OPERATOR else str(RULES[self.observation].code)

    @property
    def quarantine(self) -> bool:
        return self.observation == OPERATOR or RULES[self.observation].quarantine

    @property
    def lift(self) -> Lift:
        return Lift.OPERATOR if self.observation == OPERATOR else RULES[self.observation].lift


@dataclass(frozen=True)
class Report:
    """What stands now: problems for people, and why each GPU (by UUID) or port (``mlx5_0:1``) may not be used."""

    problems: list[Problem]
    quarantine: dict[str, str]


class Health:
    """Feed it with observations of one kind at a time; ask :meth:`report`. Methods answer whether the report changed."""

    def __init__(self) -> None:
        self._standing: dict[tuple[str, str], Condition] = {}

    def observe(self, now: float, seen: Iterable[Seen], subjects: Iterable[str]) -> bool:
        """``seen`` is all that a sample shows of ``subjects``; what it no longer shows starts to clear."""
        changed = False
        showing = {(subject, name): detail for subject, name, detail in seen}
        for key, detail in showing.items():
            changed |= self._see(now, key, detail)
        looked_at = set(subjects)
        for key, condition in list(self._standing.items()):
            if key in showing or condition.subject not in looked_at:
                continue
            if not condition.raised or (condition.lift is Lift.CLEARED and now - condition.last >= RULES[key[1]].quiet):
                changed |= condition.raised
                del self._standing[key]
        return changed

    def event(self, now: float, seen: Seen) -> bool:
        """Something that happened once. It clears as if it were seen at that moment only."""
        return self._see(now, (seen[0], seen[1]), seen[2])

    def _see(self, now: float, key: tuple[str, str], detail: str) -> bool:
        condition = self._standing.get(key)
        if condition is None:
            condition = self._standing[key] = Condition(key[0], key[1], detail, now, now, raised=False)
        was_raised, had = condition.raised, condition.detail
        condition.last = now
        if condition.raised and key[1] not in ("thermal", "thermal-soft", "port-errors"):
            condition.detail = detail
        if not condition.raised and now - condition.since >= RULES[key[1]].lasting:
            condition.raised, condition.detail = True, detail
        return condition.raised != was_raised or (condition.raised and condition.detail != had)

    def due_for_retest(self, now: float) -> list[str]:
        """GPUs for which nothing new has been seen for long enough."""
        due = {c.subject for c in self._retestable() if now - c.last >= RULES[c.observation].quiet}
        return sorted(due)

    def _retestable(self) -> list[Condition]:
        return [c for c in self._standing.values() if c.raised and c.lift is Lift.RETEST]

    def retested(self, now: float, subject: str, passed: bool) -> bool:
        """The outcome of a re-test; a failed one waits for another quiet time."""
        changed = False
        for condition in self._retestable():
            if condition.subject != subject or now - condition.last < RULES[condition.observation].quiet:
                continue
            if passed:
                del self._standing[condition.subject, condition.observation]
                changed = True
            else:
                condition.last = now
        return changed

    def hold(self, now: float, subject: str, reason: str) -> bool:
        """The operator sets a GPU or port aside."""
        self._standing[subject, OPERATOR] = Condition(subject, OPERATOR, reason, now, now, raised=True)
        return True

    def lift(self, subject: str) -> bool:
        """The operator lifts everything from a GPU or port. What still shows is raised again by the next sample."""
        keys = [key for key in self._standing if key[0] == subject]
        for key in keys:
            del self._standing[key]
        return bool(keys)

    def report(self) -> Report:
        standing = [condition for condition in self._standing.values() if condition.raised]
        quarantine: dict[str, str] = {}
        for condition in standing:
            if condition.quarantine:
                quarantine.setdefault(condition.subject, f"{condition.code}: {condition.text}; lifted {condition.lift.value}")
        return Report([Problem(condition.code, condition.subject, condition.text) for condition in standing], quarantine)

    # --- across restarts of the agent ---

    def export(self, now: float) -> list[dict[str, Any]]:
        """What a restarted agent must not forget: conditions that do not show again by themselves."""
        return [
            {
                "subject": c.subject,
                "observation": c.observation,
                "detail": c.detail,
                "age": now - c.since,
                "quiet": now - c.last,
            }
            for c in self._standing.values()
            if c.raised and c.lift is not Lift.CLEARED
        ]

    def restore(self, now: float, saved: Iterable[Mapping[str, Any]]) -> None:
        """Takes back what :meth:`export` gave; entries of rules that no longer exist are dropped."""
        for each in saved:
            name = str(each.get("observation"))
            if name != OPERATOR and name not in RULES:
                continue
            subject = str(each.get("subject"))
            since, last = now - float(each.get("age", 0)), now - float(each.get("quiet", 0))
            self._standing[subject, name] = Condition(subject, name, str(each.get("detail", "")), since, last, raised=True)


def node_problem(text: str) -> Problem:
    """The telemetry itself does not work."""
    return Problem(Code.TELEMETRY_HUNG, "node", text)
