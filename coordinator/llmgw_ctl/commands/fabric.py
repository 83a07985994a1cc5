"""``llmgwctl fabric``: InfiniBand subnets as agents have mapped them."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import Output, Server, TokenFile

app = typer.Typer(no_args_is_help=True, help="InfiniBand fabrics: switches, links, errors, changes.")


@app.command("list")
def list_fabrics(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """List the mapped subnets: size, missing links, speeds, state, and which node maps them."""
    from llmgw_ctl.hardware_views import fabrics_grid
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    maps = session.call(lambda client: client.fabrics())
    session.grid_or_data(maps, lambda: fabrics_grid(maps, session.clock.wall()))


@app.command("show")
def show_fabric(
    ctx: typer.Context,
    subnet: Annotated[
        str, typer.Argument(metavar="SUBNET", help="The subnet, as `fabric list` names it.", autocompletion=completion.fabrics)
    ],
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Show one subnet: what is wrong, missing links, errors and the latest changes first, then switch by switch."""
    from llmgw_ctl.api import NodeView
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.hardware_views import Json, fabric, owners_of
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    if not session.for_people:
        session.data(session.call(lambda client: client.fabric(subnet)))
        return

    async def ask(client: AdminClient) -> tuple[Json, list[NodeView]]:
        return await client.fabric(subnet), await client.nodes()

    record, nodes = session.call(ask)
    session.terminal.show(fabric(record, session.clock.wall(), owners_of(nodes)))
