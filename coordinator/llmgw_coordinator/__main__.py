"""``llmgw-coordinator [--config FILE] [--set key.path=value]... [--check-config] [--version]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmgw_base import lifecycle, log, net
from llmgw_base.config import ConfigError, load
from llmgw_coordinator.app import App, agent_credentials, server_tls
from llmgw_coordinator.config import CoordinatorConfig
from llmgw_proto import __version__

PROGRAM = "llmgw-coordinator"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Decides which node runs which model replica, and serves the admin API."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML; without it all settings have their defaults")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="overrides one setting; repeatable"
    )
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    options = parser.parse_args(argv)
    try:
        config = load(CoordinatorConfig, options.config, options.set)
        if options.check_config:
            check(config)
            print(f"{PROGRAM}: the configuration is good")  # noqa: T201 - the answer to the question asked
            return lifecycle.OK
    except ConfigError as error:
        return lifecycle.fail(PROGRAM, error)
    log.setup(config.log, PROGRAM)
    return lifecycle.main(PROGRAM, App(config).run)


def check(config: CoordinatorConfig) -> None:
    """What can be known about a configuration without starting anything.

    Raises:
        ConfigError
    """
    listen = net.parse_listen(config.listen)
    net.require_safe(listen, tls=config.tls is not None, insecure=config.insecure)
    if config.tls is not None:
        server_tls(config.tls)
        agent_credentials(config.tls)


if __name__ == "__main__":
    sys.exit(main())
