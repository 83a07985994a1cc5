"""Looking at one replica, taking it out of routing, restarting it; used by the replica commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llmgw_ctl.api import ReplicaView
from llmgw_ctl.client import AdminClient
from llmgw_ctl.errors import CtlError, RefusedError, UnfulfilledError, UnreachableError
from llmgw_ctl.humanize import parse_duration

if TYPE_CHECKING:
    from llmgw_ctl.session import Session

LOOK_SECONDS = 0.5


async def look(client: AdminClient, replica: str) -> tuple[ReplicaView, dict[str, Any], str]:
    """The replica, what its agent knows of it, and why that is nothing."""
    view = await client.replica(replica)
    try:
        return view, await client.replica_details(replica), ""
    except (CtlError, KeyError) as error:
        return view, {}, str(error)


async def drain(session: Session, client: AdminClient, replica: str, *, wait: bool, timeout: str) -> dict[str, Any]:
    """
    Raises:
        UnfulfilledError: requests still run after ``timeout``.
    """
    limit = session.clock.monotonic() + parse_duration(timeout)
    found = await client.drain_replica(replica, drained=True)
    # A moment for the routers to hear of it, and for requests that were on their way.
    quiet = 0
    while wait and quiet < 2:
        if session.clock.monotonic() >= limit:
            raise UnfulfilledError(
                f"{replica} is out of routing, but requests still run after {timeout}",
                f"wait longer, or end them with `llmgwctl replica restart {replica} --drain 0`",
            )
        await _pause(session)
        details = await client.replica_details(replica)
        found = {**found, "requests": details.get("requests"), "connections": details.get("connections", 0)}
        # The engine's own figures, where it has some; routers keep connections that are idle.
        busy = found["requests"] if found["requests"] is not None else found["connections"]
        quiet = 0 if busy else quiet + 1
    return found


async def restart(
    session: Session, client: AdminClient, replica: str, drain_for: str | None, *, wait: bool, timeout: str
) -> dict[str, Any]:
    """
    Raises:
        UnfulfilledError: it is not ready again in time, or given up.
    """
    seconds = parse_duration(drain_for) if drain_for is not None else None
    limit = session.clock.monotonic() + parse_duration(timeout)
    found = await client.restart_replica(replica, seconds)
    before = found.get("attempt", "")
    if not wait:
        return found
    state = reason = ""
    while session.clock.monotonic() < limit:
        await _pause(session)
        try:
            details = await client.replica_details(replica)
        except (RefusedError, UnreachableError):
            # Between two engines, or its agent is being restarted as well.
            continue
        state, reason = details.get("state", ""), details.get("reason", "")
        if details.get("attempt") == before and state != "Rejected":
            continue
        if state == "Ready":
            return {**found, "attempt": details["attempt"], "state": state, "drained": bool(details.get("drained"))}
        if state == "Rejected" or (state == "Failed" and details.get("failures") and not details.get("next_attempt_at")):
            raise UnfulfilledError(f"{replica} is {state}: {reason}", f"see `llmgwctl replica logs {replica}`")
    raise UnfulfilledError(
        f"{replica} is not Ready again after {timeout}; it is {state or 'not known'}{f': {reason}' if reason else ''}",
        f"see `llmgwctl replica show {replica}`",
    )


async def _pause(session: Session) -> None:
    try:
        await session.clock.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        session.terminal.note("no longer waiting; what was asked for goes on")
        raise
