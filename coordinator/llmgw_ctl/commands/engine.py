"""``llmgwctl engine``: which versions of engines nodes run, and installing them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.options import Output, Server, TokenFile

EngineArg = Annotated[
    str, typer.Argument(metavar="ENGINE", help="vllm, sglang or llamacpp.", autocompletion=completion.installable_engines)
]
VersionOption = Annotated[str | None, typer.Option("--version", metavar="V", help="The version; else the node's default.")]
OnNode = Annotated[str, typer.Option("--node", metavar="NODE", help="Where.", autocompletion=completion.nodes)]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only for nodes with this label; may be given again, all must fit."),
]
GpuClass = Annotated[
    str | None, typer.Option("--gpu-class", metavar="CLASS", help="Only for nodes with such a GPU, for example H100-80GB.")
]
app = typer.Typer(no_args_is_help=True, help="The engines that nodes install: vLLM, SGLang, llama.cpp.")


@app.command("list")
def list_engines(
    ctx: typer.Context,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NODE", help="Only on this node.", autocompletion=completion.nodes),
    ] = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """List what nodes have installed, what uses it, and what they will install."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.engines import engines_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: client.engines(node))
    if not session.for_people:
        session.data(found)
        return
    session.terminal.grid(engines_grid(found["nodes"], session.clock.wall()))
    for each in found["unreachable"]:
        session.terminal.warn(f"{each.get('node')} is not in the list: {each.get('cause')}")


@app.command("settings")
def engine_settings(ctx: typer.Context, output: Output = None, server: Server = None, token_file: TokenFile = None) -> None:
    """Show which versions the fleet is told to run, where, and how they are had."""
    from llmgw_ctl.session import Session
    from llmgw_ctl.views.engines import settings_grid

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: client.engine_settings())
    session.grid_or_data(found, lambda: settings_grid(found))


@app.command("set")
def set_engine(
    ctx: typer.Context,
    engine: EngineArg,
    version: Annotated[
        str, typer.Option("--version", metavar="V", help="What these nodes run when a model wishes no version.")
    ],
    label: Labels = None,
    gpu_class: GpuClass = None,
    lock: Annotated[
        Path | None, typer.Option("--lock", metavar="FILE", help="Requirements file with a hash for every package.")
    ] = None,
    requirement: Annotated[
        list[str] | None,
        typer.Option("--requirement", metavar="REQ", help="What to resolve without a lock; {version} is filled in."),
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--override", metavar="REQ", help="Replaces what packages require, while resolving.")
    ] = None,
    find_links: Annotated[
        list[str] | None, typer.Option("--find-links", metavar="PLACE", help="Folder on the nodes, or page, with wheels.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", metavar="URL", help="Package index instead of the default one.")
    ] = None,
    extra_index: Annotated[
        list[str] | None, typer.Option("--extra-index", metavar="URL", help="Asked before the index.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="PLACE", help="llama.cpp: address or path of an archive with its programs."),
    ] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", metavar="HEX", help="Of the archive; required with it.")] = None,
    build: Annotated[
        bool, typer.Option("--build", help="llama.cpp: build it on the node, from --archive or the source package.")
    ] = False,
    build_option: Annotated[
        list[str] | None, typer.Option("--build-option", metavar="OPTION", help="For cmake, for example -DGGML_CUDA=ON.")
    ] = None,
    release_only: Annotated[
        bool, typer.Option("--release-only", help="Only say how the version is had, for models that wish it.")
    ] = False,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Set the version of an engine for all nodes, or for some; nodes install it when a model needs it.

    Engines that run keep their version until they start next. What a node's own configuration says goes before.
    """
    from llmgw_ctl.engine_actions import read_labels, read_lock, tell_settings
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    body = {
        "version": version,
        "labels": read_labels(label),
        "gpu_class": gpu_class,
        "lock": read_lock(lock) if lock is not None else None,
        "requirements": requirement or [],
        "overrides": override or [],
        "find_links": find_links or [],
        "index": index,
        "extra_indexes": extra_index or [],
        "archive": archive,
        "sha256": sha256,
        "build": build,
        "build_options": build_option or [],
        "release_only": release_only,
    }
    tell_settings(session, session.call(lambda client: client.set_engine(engine, body)))


@app.command("unset")
def unset_engine(
    ctx: typer.Context,
    engine: EngineArg,
    label: Labels = None,
    gpu_class: GpuClass = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Only how this version is had; no node may be told to run it.")
    ] = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Take back a version for some nodes, or with nothing named all that is set for the engine. Nothing is stopped."""
    from llmgw_ctl.engine_actions import read_labels, tell_settings
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    body = {"labels": read_labels(label), "gpu_class": gpu_class, "version": version}
    tell_settings(session, session.call(lambda client: client.unset_engine(engine, body)))


@app.command("install")
def install_engine(
    ctx: typer.Context,
    engine: EngineArg,
    node: OnNode,
    version: VersionOption = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Install an engine on a node before a model needs it, and show how far it is; leaving does not stop it."""
    from llmgw_ctl.engine_actions import install
    from llmgw_ctl.session import Session

    install(Session(ctx, server=server, token_file=token_file, output=output), engine, node, version, again=False)


@app.command("reinstall")
def reinstall_engine(
    ctx: typer.Context,
    engine: EngineArg,
    node: OnNode,
    version: VersionOption = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Build an engine on a node again, from the same lock, for example when its files were damaged."""
    from llmgw_ctl.engine_actions import install
    from llmgw_ctl.session import Session

    install(Session(ctx, server=server, token_file=token_file, output=output), engine, node, version, again=True)


@app.command("remove")
def remove_engine(
    ctx: typer.Context,
    engine: EngineArg,
    node: OnNode,
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Only this one; else all that nothing runs from.")
    ] = None,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Remove an engine from a node's disk; refused while replicas run from it."""
    from llmgw_ctl.humanize import size
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    found = session.call(lambda client: client.remove_engine(node, engine, version))
    if not session.for_people:
        session.data(found)
    elif found.get("versions"):
        what = ", ".join(f"{engine} {each}" for each in found["versions"])
        session.terminal.line(f"{what} removed from {node}, {size(found.get('freed_bytes', 0))} freed")
    else:
        session.terminal.line(f"nothing of {engine} on {node} could be removed: it is not installed, or all of it is in use")
