"""``llmgwctl gpu`` and ``llmgwctl nvlink``: the GPUs of the fleet and what joins them."""

from __future__ import annotations

import typer

from llmgw_ctl.options import Output, Server, TokenFile

app = typer.Typer(no_args_is_help=True, help="The GPUs of all nodes.")


@app.command("list")
def list_gpus(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """List all GPUs: class, memory, NVLink island, nearest adapters, state, the replica that uses it, quarantine."""
    from llmgw_ctl.api import NodeView, ReplicaView
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.hardware_views import gpus_data, gpus_grid
    from llmgw_ctl.session import Session

    async def ask(client: AdminClient) -> tuple[list[NodeView], list[ReplicaView]]:
        return await client.nodes(), await client.replicas()

    session = Session(ctx, server=server, token_file=token_file, output=output)
    nodes, replicas = session.call(ask)
    used_by = {uuid: each.get("id", "") for each in replicas for uuid in each.get("gpus", [])}
    if session.for_people:
        session.terminal.grid(gpus_grid(nodes, used_by))
    else:
        session.data(gpus_data(nodes, used_by))


def nvlink(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """Show NVLink over the fleet: what is wrong, domains that span hosts, each node's islands and groups for TP."""
    from llmgw_ctl.hardware_views import nvlink as view
    from llmgw_ctl.hardware_views import nvlink_data
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    nodes = session.call(lambda client: client.nodes())
    if session.for_people:
        session.terminal.show(view(nodes))
    else:
        session.data(nvlink_data(nodes))
