"""``llmgwctl`` and ``python -m llmgw_ctl``."""

from __future__ import annotations

import sys

from llmgw_ctl.errors import CtlError


def main() -> int:
    """Runs the command line; returns or exits with the status listed in :mod:`llmgw_ctl.errors`."""
    from llmgw_ctl.app import build

    try:
        build()(prog_name="llmgwctl")
    except CtlError as error:
        from llmgw_ctl.terminal import Terminal

        Terminal().error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
