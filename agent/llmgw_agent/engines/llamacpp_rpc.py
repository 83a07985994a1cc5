"""llama.cpp over several nodes: each worker lends its devices through an RPC server, the head's ``llama-server`` uses them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from llmgw_agent.engines.base import Gang, Member, Pattern
from llmgw_agent.errors import RejectedError
from llmgw_proto.records import AssignmentRecord

#: What llama.cpp has called it over time.
NAMES = ("ggml-rpc-server", "rpc-server")
RPC_PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        re.compile(r"Failed to create server socket"),
        "the port was taken, or the address is not this node's.",
        "Another port is tried; engines.gang.address must be an address of this node.",
        port_taken=True,
    ),
    Pattern(
        re.compile(r"[Ff]ailed to connect to (\S+:\d+)"),
        "the RPC server of another node could not be reached at {0}.",
        "Open the hosts' firewalls to each other, or set engines.gang.address there to an address that this node reaches.",
    ),
    Pattern(
        re.compile(r"Remote RPC server crashed or returned malformed response|RPC server version mismatch|protocol version"),
        "the RPC server of another node ended, or is of another version of llama.cpp.",
        "See the state and log of the replica's other shards, and have the same llama.cpp on all nodes.",
    ),
)


def find_rpc_server(configured: str | None, llama_server: str) -> str:
    """The program of a worker: the configured one, else the one beside ``llama-server``, else the first on PATH.

    Raises:
        RejectedError: there is none.
    """
    if configured is not None:
        if (found := shutil.which(configured)) is None:
            raise RejectedError(
                f"engines.llama_rpc_server {configured}: no such program; correct it in the agent's configuration"
            )
        return found
    folder = Path(llama_server).resolve().parent
    for candidate in [*(str(folder / name) for name in NAMES), *NAMES]:
        if (found := shutil.which(candidate)) is not None:
            return found
    raise RejectedError(
        f"llama.cpp's RPC server ({NAMES[0]}) is not on this node, and a replica over several nodes needs it on all but the "
        "first: install a llama.cpp that was built with GGML_RPC, or name the program in engines.llama_rpc_server"
    )


def worker_argv(program: str, gang: Gang) -> list[str]:
    own = _usable(gang.own)
    return [program, "--host", own.address, "--port", str(own.port)]


def head_arguments(wish: AssignmentRecord, gang: Gang) -> list[str]:
    servers = ",".join(f"{each.address}:{each.port}" for each in map(_usable, gang.members[1:]))
    return ["--rpc", servers]


def _usable(member: Member) -> Member:
    if ":" in member.address:
        raise RejectedError(
            f"llama.cpp's RPC cannot use the IPv6 address {member.address} of node {member.node}; set engines.gang.address "
            "there to an IPv4 address"
        )
    return member
