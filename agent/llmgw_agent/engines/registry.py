"""All drivers that this agent has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from llmgw_agent.engines.base import Driver
from llmgw_agent.engines.command import Command
from llmgw_agent.engines.environment import EnvironmentEngine
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.vllm import Vllm
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.environments import Environments
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.records import EngineInfo

Drivers = Mapping[str, Driver]


def make_drivers(
    llama_server: str | None = None,
    environments: Environments | None = None,
    default: Callable[[str], str | None] = lambda _: None,
    llama_rpc_server: str | None = None,
) -> Drivers:
    """``environments``: where the agent installs engines; ``default``: the version of an engine that it installs, if any."""
    shelf = Shelf(environments, default)
    drivers: Iterable[Driver] = (
        LlamaCpp(llama_server, llama_rpc_server, shelf=shelf),
        Vllm(shelf),
        Sglang(shelf),
        Command(),
    )
    return {driver.name: driver for driver in drivers}


def find_driver(drivers: Drivers, engine: str) -> Driver:
    """Raises RejectedError for an engine that this version of the agent does not know."""
    driver = drivers.get(engine)
    if driver is None:
        raise RejectedError(f"engine {engine!r} is unknown to this agent; use one of {', '.join(drivers)}, or update the agent")
    return driver


def installed(drivers: Drivers) -> list[EngineInfo]:
    """For the inventory: what is here, and what is installed when it is needed. Runs programs to ask for their version: call
    it in a thread.
    """
    infos: list[EngineInfo] = []
    for driver in drivers.values():
        if isinstance(driver, EnvironmentEngine | LlamaCpp):
            infos += driver.inventory()
        elif (located := driver.locate()) is not None:
            infos.append(EngineInfo(name=driver.name, version=located.version, detail=located.detail))
    return infos
