"""Asks the coordinator again and again until every wish is fulfilled, hopeless, or out of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llmgw_base.clock import Clock
from llmgw_ctl.api import ModelView
from llmgw_ctl.errors import UnfulfilledError, UnreachableError
from llmgw_ctl.humanize import duration
from llmgw_ctl.watch.display import Display
from llmgw_ctl.watch.verdict import Judge, Outcome, Verdict, Wish

POLL_SECONDS = 0.4
UNREACHABLE_SECONDS = 20.0


class Models(Protocol):
    """The part of the client that is needed here."""

    async def models(self) -> list[ModelView]: ...


async def wait_for(
    client: Models,
    judges: Sequence[Judge],
    *,
    clock: Clock,
    display: Display,
    timeout: float,
) -> dict[str, ModelView | None]:
    """Returns the last view of each model (None when gone) once all wishes are fulfilled.

    A coordinator that is away for less than 20 s (a restart, a change of the leader) is asked again.

    Raises:
        UnfulfilledError: a wish is hopeless, or ``timeout`` seconds are over.
        UnreachableError: the coordinator stays away.
    """
    started = answered = clock.monotonic()
    with display:
        while True:
            now = clock.monotonic()
            try:
                views = {view.get("name", ""): view for view in await client.models()}
            except UnreachableError:
                if now - answered > UNREACHABLE_SECONDS or now - started > timeout:
                    raise
                await clock.sleep(POLL_SECONDS)
                continue
            now = answered = clock.monotonic()
            verdicts = {judge.name: judge.look(views.get(judge.name), now) for judge in judges}
            display.show(verdicts, now - started)
            _fail_if_hopeless(verdicts)
            if all(verdict.outcome is Outcome.FULFILLED for verdict in verdicts.values()):
                return {judge.name: views.get(judge.name) for judge in judges}
            if now - started > timeout:
                raise _timed_out(verdicts, judges, timeout)
            await clock.sleep(POLL_SECONDS)


def _fail_if_hopeless(verdicts: dict[str, Verdict]) -> None:
    hopeless = {name: verdict.text for name, verdict in verdicts.items() if verdict.outcome is Outcome.HOPELESS}
    if not hopeless or any(verdict.outcome is Outcome.WAITING for verdict in verdicts.values()):
        return  # the others may still come up; failures are reported when all are settled
    text = "\n".join(f"model {name} does not come up: {why}" for name, why in sorted(hopeless.items()))
    ready = [name for name, verdict in verdicts.items() if verdict.outcome is Outcome.FULFILLED]
    if ready:
        text += f"\n({', '.join(sorted(ready))} came up)"
    first = min(hopeless)
    raise UnfulfilledError(text, f"see `llmgwctl model show {first}`")


def _timed_out(verdicts: dict[str, Verdict], judges: Sequence[Judge], timeout: float) -> UnfulfilledError:
    late = {name: verdict for name, verdict in verdicts.items() if verdict.outcome is not Outcome.FULFILLED}
    lines = []
    for judge in judges:
        name, reason = judge.name, judge.last_reason
        verdict = late.get(name)
        if verdict is None:
            continue
        verb = "gone" if judge.wish is Wish.REMOVE else "ready"
        lines.append(
            f"model {name} is not {verb} after {duration(timeout)} ({verdict.text})"
            + (f"; last reason: {reason}" if reason and reason not in verdict.text else "")
        )
    remedy = f"it goes on in the background: watch it with `llmgwctl model show {min(late)}`, or wait longer with --timeout"
    return UnfulfilledError("\n".join(lines), remedy)
