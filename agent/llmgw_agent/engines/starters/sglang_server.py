"""Starts SGLang's server with the key from the environment.

SGLang takes its key by argument only, which everyone on the host could read, and logs its arguments. So the key is added inside
the process, and kept out of what that logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import sys
from typing import Any


def start() -> None:
    key, make = os.environ["SGLANG_API_KEY"], logging.getLogRecordFactory()

    def masked(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        # A message that cannot be formatted is the handler's to complain about.
        with contextlib.suppress(TypeError, ValueError, KeyError):
            record.msg, record.args = record.getMessage().replace(key, "***"), ()
        return record

    logging.setLogRecordFactory(masked)
    sys.argv = ["sglang", *sys.argv[1:], "--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__")


# SGLang's own processes import this file again under another name.
if __name__ == "__main__":
    start()
