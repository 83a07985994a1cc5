"""All drivers that this agent has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmgw_agent.engines.base import Driver
from llmgw_agent.engines.command import Command
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.errors import RejectedError
from llmgw_proto.records import EngineInfo

Drivers = Mapping[str, Driver]


def make_drivers(llama_server: str | None = None) -> Drivers:
    drivers: Iterable[Driver] = (LlamaCpp(llama_server), Command())
    return {driver.name: driver for driver in drivers}


def find_driver(drivers: Drivers, engine: str) -> Driver:
    """Raises RejectedError for an engine that this version of the agent does not know."""
    driver = drivers.get(engine)
    if driver is None:
        raise RejectedError(f"engine {engine!r} is unknown to this agent; use one of {', '.join(drivers)}, or update the agent")
    return driver


def installed(drivers: Drivers) -> list[EngineInfo]:
    """For the inventory. Runs programs to ask for their version: call it in a thread."""
    found = ((driver.name, driver.locate()) for driver in drivers.values())
    return [EngineInfo(name=name, version=located.version, detail=located.detail) for name, located in found if located]
