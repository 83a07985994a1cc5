"""``llmgwctl status``."""

from __future__ import annotations

import typer

from llmgw_ctl.options import Output, Server, TokenFile


def status(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """Show the cluster at a glance: who serves and leads, which nodes live, how the models are, what is wrong."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.models import models_grid
    from llmgw_ctl.views.status import status_facts

    session = Session(ctx, server=server, token_file=token_file, output=output)
    view = session.call(lambda client: client.status())
    if not session.for_people:
        session.data(view)
        return
    if view.get("stale"):
        session.terminal.warn("the coordinator cannot reach etcd: this is what it knew last")
    print_facts(session.terminal, status_facts(view, session.clock.wall()))
    session.terminal.line()
    session.terminal.grid(models_grid(view.get("models", [])).without("ENGINE"))
    if problems := view.get("problems"):
        session.terminal.line()
        session.terminal.line("Problems:", style="bold yellow")
        for problem in problems:
            session.terminal.line(f"  {problem}")
