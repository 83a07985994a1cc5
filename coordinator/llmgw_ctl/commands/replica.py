"""``llmgwctl replica``: the running copies of models, and their logs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import Output, ReplicaId, Server, TokenFile

app = typer.Typer(no_args_is_help=True, help="The running copies of models.")


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
    """Show one replica: state and reason, process, address, restarts, log file."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.replicas import replica_facts

    session = Session(ctx, server=server, token_file=token_file, output=output)
    view = session.call(lambda client: client.replica(replica))
    if session.for_people:
        print_facts(session.terminal, replica_facts(view, session.clock.wall()))
    else:
        session.data(view)


@app.command("logs")
def replica_logs(
    ctx: typer.Context,
    replica: ReplicaId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on printing what the engine writes; Ctrl-C ends it.")
    ] = False,
    tail: Annotated[
        int, typer.Option("--tail", min=0, metavar="LINES", help="How many of the last lines to begin with.")
    ] = 100,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Print the log of a replica's engine."""
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session

    async def copy(client: AdminClient) -> None:
        async for chunk in client.logs(replica, tail=tail, follow=follow):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

    Session(ctx, server=server, token_file=token_file).call(copy)
