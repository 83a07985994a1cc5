"""The composition root: all commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw_ctl.commands import engine, fabric, gpu, model, node, replica, status, up, version, weights
from llmgw_ctl.options import Output, Server, TokenFile


def build() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="llmgwctl",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        help="Runs and inspects llmgw, the gateway that turns GPU machines into one OpenAI-compatible service.",
        epilog="Exit status: 0 ok, 1 failed, 2 wrong usage, 3 coordinator not reachable, 4 not found, "
        "5 a wish not fulfilled, 130 interrupted.",
    )
    app.callback()(_root)
    app.command("up")(up.up)
    app.command("status")(status.status)
    app.add_typer(node.app, name="node")
    app.add_typer(gpu.app, name="gpu")
    app.add_typer(fabric.app, name="fabric")
    app.command("nvlink")(gpu.nvlink)
    app.add_typer(model.build(), name="model")
    app.add_typer(replica.app, name="replica")
    app.add_typer(weights.app, name="weights")
    app.add_typer(engine.app, name="engine")
    app.command("version")(version.version)
    return app


def _root(
    server: Server = None,
    token_file: TokenFile = None,
    output: Output = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=version.print_and_exit, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass  # the values stay in the context, where llmgw_ctl.session.Session finds them
