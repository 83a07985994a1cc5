"""``llmgwctl model apply|serve|scale|remove``: wishes, and waiting for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from llmgw_ctl import completion
from llmgw_ctl.options import ModelName, NoWait, Output, Server, Settle, Timeout, TokenFile

if TYPE_CHECKING:
    from llmgw_ctl.api import ModelView
    from llmgw_ctl.session import Session

SERVE_EXAMPLES = (
    "Examples: `llmgwctl model serve tiny /srv/models/tiny.gguf --replicas 2`; "
    "`llmgwctl model serve echo -- python3 echo.py --port {port}`."
)
_AFTER_DASHES = "llmgw_ctl.after_dashes"


class WordsAfterDashes(TyperCommand):
    """Keeps what stands after ``--`` apart, so that it is never taken for NAME or SOURCE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[_AFTER_DASHES] = args[cut + 1 :]
        return super().parse_args(ctx, args[:cut])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def apply(
    ctx: typer.Context,
    file: Annotated[
        str,
        typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON, several documents; a folder of such; - for stdin."),
    ],
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    settle: Settle = "10s",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Create or change models from files, and wait until they are ready."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.spec import read_specs

    session = Session(ctx, server=server, token_file=token_file, output=output)
    _apply(session, read_specs(file), no_wait, timeout, settle, many=True)


def serve(
    ctx: typer.Context,
    name: ModelName,
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="Where the weights are: a path on the nodes, hf:org/repo or https://host/file."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            help="llamacpp, vllm, sglang or command; command when words stand after --.",
            autocompletion=completion.engines,
        ),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=0, help="How many copies.")] = 1,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Host memory for each, for example 2GiB.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs for each, on each of its nodes.")] = 0,
    gpu_class: Annotated[
        str | None, typer.Option("--gpu-class", metavar="CLASS", help="Only such GPUs, for example H100-80GB; see gpu list.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, metavar="N", help="Nodes that each copy spans.")] = 1,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", metavar="WORD", help="One more argument for the engine; repeatable.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="Environment of the engine; repeatable.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="POLICY", help="How routers choose a replica.")] = None,
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    settle: Settle = "10s",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Serve one model, and wait until it is ready. Words after -- are the program for engine 'command'."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.spec import ServeWish, spec_of

    wish = ServeWish(
        name=name,
        source=source,
        engine=engine,
        replicas=replicas,
        memory=memory,
        gpus=gpus,
        gpu_class=gpu_class,
        nodes=nodes,
        args=tuple(arg or ()),
        env=tuple(env or ()),
        policy=policy,
        command=tuple(ctx.meta[_AFTER_DASHES]),
    )
    session = Session(ctx, server=server, token_file=token_file, output=output)
    _apply(session, [spec_of(wish, Path.cwd())], no_wait, timeout, settle, many=False)


def scale(
    ctx: typer.Context,
    name: ModelName,
    replicas: Annotated[int, typer.Argument(min=0, metavar="REPLICAS", help="How many copies; 0 stops the model.")],
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    settle: Settle = "10s",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Change the number of replicas, and wait until that many are ready."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.wishes import Patience, scale_model

    session = Session(ctx, server=server, token_file=token_file, output=output)
    patience = Patience.parse(timeout, settle, wait=not no_wait)
    view = session.call(lambda client: scale_model(session, client, name, replicas, patience))
    if session.for_people:
        count = f"{view.get('ready', 0)} of {view.get('wanted', replicas)} replicas ready"
        session.terminal.line(f"model {name}: {count if patience.wait else f'scaled to {replicas}'}")
    else:
        session.data(view)


def remove(
    ctx: typer.Context,
    name: ModelName,
    no_wait: NoWait = False,
    timeout: Timeout = "10m",
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Remove a model; its replicas finish their requests and stop. Waits until nothing of it is left."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.wishes import Patience, remove_model

    session = Session(ctx, server=server, token_file=token_file, output=output)
    patience = Patience.parse(timeout, "10s", wait=not no_wait)
    replicas = session.call(lambda client: remove_model(session, client, name, patience))
    if session.for_people:
        session.terminal.line(f"model {name} {'removed' if patience.wait else 'is being removed'}")
    else:
        session.data({"name": name, "replicas": replicas})


def _apply(session: Session, specs: list[dict[str, Any]], no_wait: bool, timeout: str, settle: str, *, many: bool) -> None:
    from llmgw_ctl.wishes import Patience, apply_specs

    patience = Patience.parse(timeout, settle, wait=not no_wait)
    applied = session.call(lambda client: apply_specs(session, client, specs, patience))
    if not session.for_people:
        views: list[ModelView] = [each.view for each in applied]
        session.data(views if many else views[0])
        return
    for each in applied:
        state = "" if not patience.wait else f", {each.view.get('ready', 0)} of {each.view.get('wanted', 0)} replicas ready"
        session.terminal.line(f"model {each.name} {each.what}{state}")
