"""``llmgwctl node``: the machines."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import NodeName, Output, Server, TokenFile

app = typer.Typer(no_args_is_help=True, help="The machines that run models.")


@app.command("list")
def list_nodes(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """List the nodes with their hardware and what runs on them."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.nodes import nodes_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    nodes = session.call(lambda client: client.nodes())
    session.grid_or_data(nodes, lambda: nodes_grid(nodes))


@app.command("show")
def show_node(
    ctx: typer.Context, name: NodeName, output: Output = None, server: Server = None, token_file: TokenFile = None
) -> None:
    """Show one node: engines, disks, problems, GPUs with NVLink, adapters and networks, and its replicas."""
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    if not session.for_people:
        session.data(session.call(lambda client: client.node(name)))
        return
    from llmgw_ctl.api import NodeView, ReplicaView
    from llmgw_ctl.hardware_views import node_hardware, topology_of
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.nodes import node_facts
    from llmgw_ctl.views.replicas import nodes_of, replicas_grid

    async def ask(client: AdminClient) -> tuple[NodeView, list[ReplicaView]]:
        return await client.node(name), await client.replicas()

    node, replicas = session.call(ask)
    now = session.clock.wall()
    print_facts(session.terminal, node_facts(node, now))
    session.terminal.line()
    if topology_of(node):
        session.terminal.show(node_hardware(node))
        session.terminal.line()
    here = [each for each in replicas if name in nodes_of(each)]
    grid = replicas_grid(here, now, empty="No replicas on this node.")
    # Where the rest of a replica is, if there is one that spans nodes.
    session.terminal.grid(grid if any(len(nodes_of(each)) > 1 for each in here) else grid.without("NODE"))


@app.command("top")
def node_top(
    ctx: typer.Context,
    name: NodeName,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Between two looks.")] = "2s",
    count: Annotated[int, typer.Option("--count", min=0, metavar="N", help="How many looks; 0: until Ctrl-C.")] = 0,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Watch a node's GPUs and replicas: use, memory, power, requests, tokens per second. -o json: one object a line."""
    from llmgw_ctl.node_top import watch
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    session.call(lambda client: watch(session, client, name, every, count))


@app.command("bandwidth")
def node_bandwidth(
    ctx: typer.Context,
    name: NodeName,
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Name of the other node.", autocompletion=completion.nodes)],
    force: Annotated[bool, typer.Option("--force", help="Also while replicas serve there; it takes their bandwidth.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=60, help="How long to measure.")] = 5,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Measure the bandwidth from one node to another: over RDMA where both have it, else over TCP."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.nodes import bandwidth_line

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: client.bandwidth(name, peer, force=force, seconds=seconds))
    if not session.for_people:
        session.data(found)
        return
    session.terminal.line(bandwidth_line(found))
    if found.get("note"):
        session.terminal.note(found["note"])
