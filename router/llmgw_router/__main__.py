"""``llmgw-router``: reads the command line and starts one worker, or a supervisor with several."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from llmgw_base import config as base_config
from llmgw_base import lifecycle, log
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError
from llmgw_router import __version__
from llmgw_router.config import RouterConfig
from llmgw_router.role import Role

PROGRAM = "llmgw-router"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        PROGRAM, description="Serves the OpenAI API in front of many inference engines.", allow_abbrev=False
    )
    made.add_argument("--config", type=Path, metavar="FILE", help="YAML; docs/router.md explains every key")
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="overrides one key of the file; repeatable"
    )
    made.add_argument(
        "--listen", metavar="HOST:PORT", help="default 127.0.0.1:8080; a bare port is loopback; port 0 takes any free one"
    )
    made.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="ID=URL=MODEL[,MODEL]",
        help="an engine, for a router without a cluster; repeatable; its key may stand in the URL as http://:KEY@host:port",
    )
    made.add_argument("--api-keys", type=Path, metavar="FILE", help="name:key lines; without it every client is served")
    made.add_argument("--workers", metavar="N", help="processes, default 1; auto: one per core")
    made.add_argument("--check-config", action="store_true", help="says whether the configuration is right, and ends")
    made.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return made


def configuration(arguments: argparse.Namespace) -> RouterConfig:
    """The file with the flags laid over it.

    Raises:
        ConfigError: it cannot be used.
    """
    overrides = list(arguments.set)
    if arguments.listen is not None:
        overrides.append(f"listen='{arguments.listen}'")
    if arguments.api_keys is not None:
        overrides.append(f"api_keys='{arguments.api_keys}'")
    if arguments.workers is not None:
        overrides.append(f"workers={arguments.workers}")
    if arguments.endpoint:
        quoted = ", ".join("'" + each.replace("'", "''") + "'" for each in arguments.endpoint)
        overrides.append(f"endpoints=[{quoted}]")
    return base_config.load(RouterConfig, arguments.config, overrides)


def main(argv: Sequence[str] | None = None) -> int:
    # These pull in the parts that take time to import, which --help and --version need not wait for.
    arguments = parser().parse_args(argv)
    from llmgw_router.app import Worker, worker_count
    from llmgw_router.supervisor import Supervisor

    try:
        config = configuration(arguments)
        log.setup(config.log, PROGRAM)
        clock = SystemClock()
        role = Role.taken_from(os.environ)
        count = worker_count(config)
        # Made also when there are to be several: so faults in the configuration are found first, and once.
        worker = Worker(config, clock, role)
    except ConfigError as error:
        return lifecycle.fail(PROGRAM, error)
    if arguments.check_config:
        print(f"{PROGRAM}: the configuration is right")  # noqa: T201 - it is what the user asked for
        return lifecycle.OK
    if role is not None or count == 1:
        return lifecycle.main(PROGRAM, worker.run, loop_factory=uvloop.new_event_loop)
    supervisor = Supervisor(config, clock, count, list(sys.argv[1:] if argv is None else argv))
    return lifecycle.main(PROGRAM, supervisor.run)


if __name__ == "__main__":
    sys.exit(main())
