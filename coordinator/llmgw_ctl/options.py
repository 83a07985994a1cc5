"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw_ctl import completion
from llmgw_ctl.output import Format

_CONNECTION = "Connection"

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        show_envvar=False,
        help="The coordinator's admin API; several with commas. Else LLMGW_SERVER, the settings file, a running `up`.",
        rich_help_panel=_CONNECTION,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the admin token. Else LLMGW_TOKEN_FILE, LLMGW_TOKEN, the settings file, a running `up`.",
        rich_help_panel=_CONNECTION,
    ),
]
Output = Annotated[
    Format | None,
    typer.Option("--output", "-o", help="table for people; json or yaml for programs.", show_default=False),
]

NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once instead of waiting until it is done.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="DURATION", help="How long to wait, for example 90s or 10m.")]
Settle = Annotated[
    str,
    typer.Option(
        "--settle",
        metavar="DURATION",
        help="How long a model may be Pending or Degraded for the same reason before that counts as a failure.",
    ),
]

ModelName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.", autocompletion=completion.models)]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=completion.nodes)]
ReplicaId = Annotated[str, typer.Argument(metavar="REPLICA", help="Id of the replica.", autocompletion=completion.replicas)]
