"""``llmgwctl version``."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw_ctl.options import Output, Server, TokenFile

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session


def version_text() -> str:
    from llmgw_proto import __version__

    return __version__


def print_and_exit(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmgwctl {version_text()}")
        raise typer.Exit


def version(
    ctx: typer.Context,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Ask the coordinators, routers and agents for theirs as well.")
    ] = False,
    output: Output = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Print the version of llmgwctl, and with --cluster those of the running programs."""
    from llmgw_ctl.session import Session

    session = Session(ctx, server=server, token_file=token_file, output=output)
    versions = {"llmgwctl": version_text(), "python": platform.python_version()}
    running = _running(session) if cluster else []
    if not session.for_people:
        session.data(versions | ({"programs": running} if cluster else {}))
        return
    session.terminal.line(f"llmgwctl {versions['llmgwctl']} (Python {versions['python']})")
    if cluster:
        from llmgw_ctl.grid import Column, Grid

        rows = [(each["program"], each["id"], each["version"]) for each in running]
        session.terminal.grid(Grid((Column("PROGRAM"), Column("ID"), Column("VERSION")), rows, "No program is running."))


def _running(session: Session) -> list[dict[str, str]]:
    async def ask(client: AdminClient) -> list[dict[str, str]]:
        status, nodes = await client.status(), await client.nodes()
        found = [("coordinator", each.get("id", ""), each.get("version", "")) for each in status.get("coordinators", [])]
        found += [("router", each.get("id", ""), each.get("version", "")) for each in status.get("routers", [])]
        found += [("agent", each.get("name", ""), str((each.get("inventory") or {}).get("version", ""))) for each in nodes]
        return [{"program": program, "id": name, "version": text} for program, name, text in sorted(found)]

    return session.call(ask)
