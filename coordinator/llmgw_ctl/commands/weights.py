"""``llmgwctl weights``: the model weights that nodes keep."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import Output, Server, TokenFile

app = typer.Typer(no_args_is_help=True, help="The model weights that nodes keep.")
Name = Annotated[
    str,
    typer.Argument(
        metavar="WEIGHTS",
        help="The source, the key, or the beginning of the content's digest (8 digits or more), as `weights list` shows them.",
        autocompletion=completion.weights,
    ),
]
OnNode = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Only on this node.", autocompletion=completion.nodes)
]


@app.command("list")
def list_weights(
    ctx: typer.Context, node: OnNode = None, output: Output = None, server: Server = None, token_file: TokenFile = None
) -> None:
    """List the weights on the nodes: source, size, model, which shards use them, when they were last used."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.weights import weights_grid
    from llmgw_ctl.weights_actions import look, warn_of_silent

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: look(client, node))
    session.grid_or_data(found, lambda: weights_grid(found["nodes"], session.clock.wall()))
    warn_of_silent(session, found)


@app.command("show")
def show_weights(
    ctx: typer.Context,
    name: Name,
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Show weights: what kind of model they are, and on which nodes they lie."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.weights import copies_grid, weights_facts
    from llmgw_ctl.weights_actions import find, warn_of_silent

    session = Session(ctx, server=server, token_file=token_file, output=output)
    copies, seen = session.call(lambda client: find(client, name, node))
    if not session.for_people:
        session.data(copies)
        return
    print_facts(session.terminal, weights_facts(copies[0]))
    session.terminal.line()
    session.terminal.grid(copies_grid(copies, session.clock.wall()))
    warn_of_silent(session, seen)


@app.command("remove")
def remove_weights(
    ctx: typer.Context,
    name: Name,
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Remove weights from the nodes' disks; refused where a replica runs or starts with them."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.weights_actions import remove

    remove(Session(ctx, server=server, token_file=token_file, output=output), name, node)


@app.command("verify")
def verify_weights(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[WEIGHTS]", help="As for `weights show`; all when left out.", autocompletion=completion.weights
        ),
    ] = None,
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Read weights again and compare them with their digests; what is wrong is removed, and fetched when next needed."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.weights_actions import verify

    verify(Session(ctx, server=server, token_file=token_file, output=output), name, node)


@app.command("fetch")
def fetch_weights(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="hf:org/repo[@revision][:file] or https://host/file.")],
    node: Annotated[
        list[str], typer.Option("--node", metavar="NODE", help="Where to; repeatable.", autocompletion=completion.nodes)
    ],
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Fetch weights ahead of time; Ctrl-C stops it, and what came is kept and continued the next time."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.weights_actions import fetch

    fetch(Session(ctx, server=server, token_file=token_file, output=output), source, node)
