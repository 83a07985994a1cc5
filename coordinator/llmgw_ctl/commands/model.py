"""``llmgwctl model``: looking at models. What changes them is in :mod:`llmgw_ctl.commands.model_change`."""

from __future__ import annotations

import typer

from llmgw_ctl.commands import model_change
from llmgw_ctl.options import ModelName, Output, Server, TokenFile


def build() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help="The models that are served.")
    app.command("apply")(model_change.apply)
    app.command("serve", cls=model_change.WordsAfterDashes, epilog=model_change.SERVE_EXAMPLES)(model_change.serve)
    app.command("list")(list_models)
    app.command("show")(show_model)
    app.command("scale")(model_change.scale)
    app.command("remove")(model_change.remove)
    return app


def list_models(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """List the models: how many replicas are ready and wanted, and why not."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.models import models_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    models = session.call(lambda client: client.models())
    session.grid_or_data(models, lambda: models_grid(models))


def show_model(
    ctx: typer.Context, name: ModelName, output: Output = None, server: Server = None, token_file: TokenFile = None
) -> None:
    """Show one model: its spec in short, state and reason, and its replicas."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.facts import print_facts
    from llmgw_ctl.views.models import model_facts
    from llmgw_ctl.views.replicas import replicas_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    model = session.call(lambda client: client.model(name))
    if not session.for_people:
        session.data(model)
        return
    print_facts(session.terminal, model_facts(model))
    session.terminal.line()
    empty = "No replicas yet." if model.get("wanted") else f"No replicas wanted; start one: llmgwctl model scale {name} 1"
    session.terminal.grid(replicas_grid(model.get("replicas", []), session.clock.wall(), empty=empty).without("MODEL"))
