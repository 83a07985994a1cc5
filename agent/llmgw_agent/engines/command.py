"""``command``: any program that speaks OpenAI HTTP, given as an argv template."""

from __future__ import annotations

import re
import shutil

from llmgw_agent.engines.base import Available, Checked, Facts, Host, Launch, Located, Pattern, Place
from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.weights import path_of
from llmgw_agent.errors import RejectedError
from llmgw_proto.engines import check_args, check_command, check_env, fill_command
from llmgw_proto.records import AssignmentRecord

API_KEY_VARIABLE = "ENGINE_API_KEY"


class Command:
    name = "command"
    patterns: tuple[Pattern, ...] = (
        Pattern(
            re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE),
            "the port was taken.",
            "Another port is tried.",
            port_taken=True,
        ),
        Pattern(
            re.compile(r"(?:CUDA error: |CUDA )?out of memory|std::bad_alloc|MemoryError", re.IGNORECASE),
            "memory ran out.",
            "Give the engine smaller limits or the model a node with more memory.",
        ),
        Pattern(
            re.compile(r"No such file or directory:? ?(.*)"),
            "a file is missing: {0}.",
            "Put it on the node or correct command and source.",
        ),
    )

    def locate(self) -> Located | None:
        return Located("", "argv template of the model", ())

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        problem = check_command(wish.command) or check_args(self.name, wish.args) or check_env(wish.env)
        if problem is not None:
            raise RejectedError(problem)
        program = wish.command[0]
        if "{" not in program and shutil.which(program, path=wish.env.get("PATH")) is None:
            raise RejectedError(
                f"command: program {program!r} is not on this node or not executable; install it or give its path"
            )
        path = path_of(wish.source, weights) if weights is not None or _is_local(wish.source) else None
        if path is not None and not path.exists():
            raise RejectedError(f"weights {path}: no such file or folder on this node; copy it there or correct source")
        if wish.memory_bytes > host.memory_limit:
            raise RejectedError(
                f"memory: {wish.memory_bytes} bytes are wished, this node has {host.memory_limit} bytes for engines; "
                "wish less or use a node with more memory"
            )
        return Checked(path, wish.memory_bytes)

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        model = str(checked.weights) if checked.weights is not None else wish.source or wish.model
        fields = {
            "host": place.host,
            "port": str(place.port),
            "model": model,
            "name": wish.model,
            "api_key": place.api_key,
        }
        environment = {API_KEY_VARIABLE: place.api_key, "PYTHONUNBUFFERED": "1", **wish.env}
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(wish.gpus)
        return Launch(fill_command([*wish.command, *wish.args], fields), environment)

    def worker_listens(self, wish: AssignmentRecord) -> bool:
        return False

    def capabilities(self, wish: AssignmentRecord) -> list[str]:
        return ["chat", "completions"] if wish.capabilities is None else wish.capabilities

    def health_path(self, wish: AssignmentRecord) -> str:
        return wish.health_path

    async def busy(self, client: EngineClient) -> bool | None:
        return None

    async def facts(self, client: EngineClient, wish: AssignmentRecord) -> Facts:
        return await listed_facts(client, wish.model)


def _is_local(source: str | None) -> bool:
    return source is not None and source.startswith(("/", "file:"))
