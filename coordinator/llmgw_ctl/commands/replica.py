"""``llmgwctl replica``: the running copies of models, and their logs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.commands import replica_change
from llmgw_ctl.options import Output, ReplicaId, Server, TokenFile


class LogName(StrEnum):
    ENGINE = "engine"
    FIRST_FAILURE = "first-failure"
    SUSPECT = "suspect"


app = typer.Typer(no_args_is_help=True, help="The running copies of models.")
app.command("drain")(replica_change.drain)
app.command("undrain")(replica_change.undrain)
app.command("restart")(replica_change.restart)


@app.command("list")
def list_replicas(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Only those of this model.", autocompletion=completion.models),
    ] = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """List replicas: where they run, how they are and since when."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.replicas import replicas_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    replicas = session.call(lambda client: client.replicas(model))
    session.grid_or_data(replicas, lambda: replicas_grid(replicas, session.clock.wall()))


@app.command("show")
def show_replica(
    ctx: typer.Context, replica: ReplicaId, output: Output = None, server: Server = None, token_file: TokenFile = None
) -> None:
    """Show one replica: state and history, process, figures, restarts, logs, and its shards when it spans nodes."""
    from llmgw_ctl.replica_actions import look
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.replica_details import detail_facts, history_grid, processes_grid
    from llmgw_ctl.views.replicas import nodes_of, replica_facts, shards_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    view, details, silent = session.call(lambda client: look(client, replica))
    if not session.for_people:
        session.data({**view, "details": details})
        return
    print_facts(session.terminal, replica_facts(view, session.clock.wall()) + detail_facts(details, session.clock.wall()))
    if silent:
        session.terminal.warn(f"its agent tells nothing more: {silent}")
    for grid in (history_grid(details, session.clock.wall()), processes_grid(details)):
        if grid.rows:
            session.terminal.line()
            session.terminal.grid(grid)
    if len(nodes_of(view)) > 1:
        session.terminal.line()
        session.terminal.grid(shards_grid(view))


@app.command("logs")
def replica_logs(
    ctx: typer.Context,
    replica: ReplicaId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing what the engine writes; Ctrl-C ends it.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            min=0,
            metavar="LINES",
            help="How many of the last lines to begin with; 100, or with --since all.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int, typer.Option("--rank", min=0, metavar="N", help="Of a replica over several nodes: whose log; 0 is the head's.")
    ] = 0,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only what was written since: 10m, or 2026-01-31T08:00:00Z."),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Only lines that match; --tail then counts those. Done on the node."),
    ] = None,
    file: Annotated[
        LogName,
        typer.Option("--file", help="The engine's log, or what was kept of its first failure or of its last suspicion."),
    ] = LogName.ENGINE,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Print the log of a replica's engine."""
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.humanize import parse_moment
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file)
    chosen: dict[str, str | float] = {}
    if since is not None:
        chosen["since"] = round(parse_moment(since, session.clock.wall()), 3)
    if rank:
        chosen["rank"] = rank
    if grep is not None:
        chosen["grep"] = grep
    if file is not LogName.ENGINE:
        chosen["file"] = file.value
    lines = tail if tail is not None else 0 if since is not None or file is not LogName.ENGINE else 100

    async def copy(client: AdminClient) -> None:
        async for chunk in client.logs(replica, tail=lines, follow=follow, **chosen):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

    session.call(copy)
