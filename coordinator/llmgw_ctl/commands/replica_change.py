"""``llmgwctl replica drain``, ``undrain`` and ``restart``."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl.options import NoWait, Output, ReplicaId, Server, Timeout, TokenFile


def drain(
    ctx: typer.Context,
    replica: ReplicaId,
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Take a replica out of routing and wait until its requests are done. Its engine stays up until `replica undrain`."""
    from llmgw_ctl.replica_actions import drain as act
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: act(session, client, replica, wait=not no_wait, timeout=timeout))
    if session.for_people:
        busy = found["requests"] if found.get("requests") is not None else found.get("connections")
        left = f"; requests that still run: {busy}" if busy else "; no request runs"
        session.terminal.line(f"{replica} is out of routing{left}; bring it back with `llmgwctl replica undrain {replica}`")
    else:
        session.data(found)


def undrain(
    ctx: typer.Context, replica: ReplicaId, output: Output = None, server: Server = None, token_file: TokenFile = None
) -> None:
    """Bring a drained replica back into routing."""
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: client.drain_replica(replica, drained=False))
    if session.for_people:
        session.terminal.line(f"{replica} takes requests again as soon as it is ready")
    else:
        session.data(found)


def restart(
    ctx: typer.Context,
    replica: ReplicaId,
    drain_for: Annotated[
        str | None,
        typer.Option("--drain", metavar="DURATION", help="How long running requests may go on; else as the model says."),
    ] = None,
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Let a replica finish its requests, end its engine and start it again; failures so far are forgotten."""
    from llmgw_ctl.replica_actions import restart as act
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: act(session, client, replica, drain_for, wait=not no_wait, timeout=timeout))
    if session.for_people:
        away = f", and still out of routing; bring it back with `llmgwctl replica undrain {replica}`"
        ready = f"{replica} is Ready again{away if found.get('drained') else ''}"
        session.terminal.line(f"{replica} is restarting" if no_wait else ready)
    else:
        session.data(found)
