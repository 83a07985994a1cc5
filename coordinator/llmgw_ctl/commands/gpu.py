"""``llmgwctl gpu`` and ``llmgwctl nvlink``: the GPUs of the fleet and what joins them."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import Output, Server, TokenFile

GpuName = Annotated[
    str,
    typer.Argument(
        metavar="GPU",
        help="UUID of the GPU or its beginning, or with --node a port such as mlx5_0:1.",
        autocompletion=completion.gpus,
    ),
]
OnNode = Annotated[
    str | None,
    typer.Option("--node", metavar="NODE", help="Where it is; else looked up by UUID.", autocompletion=completion.nodes),
]
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


@app.command("hold")
def hold_gpu(
    ctx: typer.Context,
    gpu: GpuName,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; others see it in `gpu list`.")] = "",
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Set a GPU or port aside until it is lifted: replicas on a GPU move elsewhere."""
    from llmgw_ctl.hardware_actions import hold, tell_standing
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    tell_standing(session, session.call(lambda client: hold(client, gpu, node, reason)))


@app.command("lift")
def lift_gpu(
    ctx: typer.Context,
    gpu: GpuName,
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Lift the quarantine of a GPU or port and test it again; what still shows comes back."""
    from llmgw_ctl.hardware_actions import lift, tell_standing
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    tell_standing(session, session.call(lambda client: lift(client, gpu, node)))


@app.command("power")
def gpu_power(
    ctx: typer.Context,
    gpu: GpuName,
    watts: Annotated[str, typer.Argument(metavar="WATTS", help="The cap, or 'default' for the card's own.")],
    node: OnNode = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Set a GPU's power cap, inside of what the card allows; it stays until it is changed or the node restarts."""
    from llmgw_ctl.hardware_actions import parse_watts, power
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    wished = parse_watts(watts)
    found = session.call(lambda client: power(client, gpu, node, wished))
    if session.for_people:
        session.terminal.line(f"{found['gpu']}: power limit {found['watts']:g} W")
    else:
        session.data(found)


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
