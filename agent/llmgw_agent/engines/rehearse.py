"""Has an engine's own parser read the command line, before gigabytes are fetched for arguments that it refuses.

The engine's program is started as it will be, in its environment, with one difference: it ends once its parser has read the
arguments. That costs what its imports cost, so an environment remembers what was found good in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import signal
from pathlib import Path

from llmgw_agent.engines.base import Launch, Located
from llmgw_agent.engines.hf_engine import HfEngine
from llmgw_agent.errors import RejectedError
from llmgw_agent.process.spawn import clean_environment
from llmgw_proto.records import AssignmentRecord

#: Seconds after which the engine is started without.
LIMIT = 300.0
REMEMBERED = ".llmgw-arguments"
_TAKEN = "llmgw-arguments-taken"
_LINES = 64 << 10
#: How argparse refuses, and what it exits with then.
_REFUSED = re.compile(r"^[^\n:]+: error: ", re.MULTILINE)
_USAGE_STATUS = 2
_NOISE = re.compile(r" For further information visit \S+")
logger = logging.getLogger(__name__)

#: The one parser that knows how to name the model is the server's; libraries may have others.
SCRIPT = f"""
import argparse, os, runpy, signal, sys
signal.alarm(int(sys.argv[1]))
plain = argparse.ArgumentParser.parse_args
def parse_args(self, args=None, namespace=None):
    found = plain(self, args, namespace)
    if "--served-model-name" in self._option_string_actions:
        print("\\n{_TAKEN}", flush=True)
        os._exit(0)
    return found
argparse.ArgumentParser.parse_args = parse_args
argparse.ArgumentParser.print_usage = lambda self, file=None: None
arguments = sys.argv[2:]
if arguments[0] == "-m":
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
"""


class Rehearsals:
    """``limit`` in seconds. Two at most run at once; all others wait, since each takes a core for a while."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._turns = asyncio.Semaphore(2)

    async def rehearse(self, driver: HfEngine, wish: AssignmentRecord, located: Located) -> None:
        """Returns when the parser takes the arguments, and when it cannot be asked: then the engine itself is to tell.

        Raises:
            RejectedError: the parser refuses them; its message is in the error's.
        """
        launch = driver.rehearsal(wish, located)
        known = Path(located.argv[0]).parents[1] / REMEMBERED
        name = hashlib.sha256(json.dumps([SCRIPT, launch.argv]).encode()).hexdigest()
        async with self._turns:
            if await asyncio.to_thread((known / name).exists):
                return
            ended = await self._run(launch, wish)
        if ended is None:
            return
        status, said = ended
        if _TAKEN in said:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_remember, known, name)
        elif status == _USAGE_STATUS and (refused := list(_REFUSED.finditer(said))):
            message = _NOISE.sub("", " ".join(said[refused[-1].end() :].split()))
            raise RejectedError(
                f"args: {driver.title} {located.version} does not take them ({message[:400]}); "
                "correct the model's args, or use another version of the engine"
            )
        else:
            last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it wrote nothing")
            self._log(wish, last[:300])

    async def _run(self, launch: Launch, wish: AssignmentRecord) -> tuple[int, str] | None:
        """Its exit status and the last of what it wrote; None if it could not be asked."""
        python, *arguments = launch.argv
        # It ends by itself too, should this agent not be there any more.
        argv = [python, "-c", SCRIPT, str(int(self._limit) + 5), *arguments]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd="/",
                env=clean_environment(os.environ, launch.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._log(wish, error.strerror or str(error))
            return None
        try:
            async with asyncio.timeout(self._limit):
                said = await _last(process)
                return await process.wait(), said
        except TimeoutError:
            self._log(wish, f"no answer within {self._limit:g} s")
            return None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _log(self, wish: AssignmentRecord, cause: str) -> None:
        fields = {"shard": wish.shard, "engine": wish.engine, "cause": cause}
        logger.warning("the engine's parser cannot be asked; it is started without", extra={"fields": fields})


async def _last(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    text = b""
    while block := await process.stdout.read(1 << 16):
        text = (text + block)[-_LINES:]
    return text.decode(errors="replace")


def _remember(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).touch()
