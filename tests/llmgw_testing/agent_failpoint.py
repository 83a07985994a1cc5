"""The agent as a program that ends itself with SIGKILL at a named step: what a power cut does at just that moment.

``python -m llmgw_testing.agent_failpoint STEP --config FILE``; the steps are the names given to ``Context.checkpoint``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from llmgw_agent.app import App
from llmgw_agent.config import AgentConfig
from llmgw_agent.outside import connect
from llmgw_base import lifecycle
from llmgw_base.config import load
from llmgw_base.log import setup


def main(argv: list[str]) -> int:
    step, _, file = argv
    config = load(AgentConfig, Path(file))

    def checkpoint(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    setup(config.log, "llmgw-agent")
    return lifecycle.main("llmgw-agent", App(config, connect=connect, checkpoint=checkpoint).run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
