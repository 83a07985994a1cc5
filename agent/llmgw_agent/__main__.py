"""``llmgw-agent``: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent import __version__
from llmgw_agent.config import AgentConfig
from llmgw_base import lifecycle
from llmgw_base.config import ConfigError, load

PROGRAM = "llmgw-agent"
_WHAT = "Runs and supervises engines on this host."
_MORE = "`llmgw-agent detect` prints the hardware as the agent sees it and exits; `llmgw-agent detect --help` tells more."


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["detect"]:
        from llmgw_agent.hardware.detect import detect_main

        return detect_main(arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        config = load(AgentConfig, options.config, options.set)
    except ConfigError as error:
        return lifecycle.fail(PROGRAM, error)
    if options.check_config:
        print(f"{options.config or 'defaults'}: fine")  # noqa: T201 - the answer to a question on the command line
        return lifecycle.OK
    return _run(config)


def _run(config: AgentConfig) -> int:
    # Imported late, so that --version and --check-config answer at once.
    from llmgw_agent.app import App
    from llmgw_agent.outside import connect
    from llmgw_base.log import setup

    setup(config.log, PROGRAM)
    app = App(config, connect=connect)
    return lifecycle.main(PROGRAM, app.run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=_WHAT, epilog=_MORE)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; without it everything has its default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="overrides a value of the file; may be repeated"
    )
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
