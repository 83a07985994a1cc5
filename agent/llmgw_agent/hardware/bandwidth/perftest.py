"""The RDMA test with ``ib_write_bw`` of the perftest package."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from llmgw_agent.hardware.bandwidth.errors import MeasurementFailedError, PeerUnreachableError, ProgramMissingError

PROGRAM = "ib_write_bw"
_SLACK = 30.0


@dataclass(frozen=True)
class RdmaResult:
    """One line of the result. With a test by time the peak is not measured and always 0: use the average. Gb/s."""

    bytes: int
    iterations: int
    peak: float
    average: float
    message_rate: float


# A warning without a line break of its own may stick to the end of the line.
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+\.\d+)\s+(\d+\.\d+)\s+(\d+\.\d{6})")
_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 1.048576 / 1000, "MiB/sec": 8 * 1.048576 / 1000}
_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\S+?)\]")


def parse(text: str) -> list[RdmaResult]:
    """The result lines, one per message size; a size whose test did not count (all zero) is left out."""
    unit: float | None = None
    found = []
    for line in text.splitlines():
        if head := _HEAD.search(line):
            unit = _UNITS.get(head[1])
        elif unit is not None and (row := _ROW.match(line)) and float(row[4]) > 0:
            found.append(RdmaResult(int(row[1]), int(row[2]), float(row[3]) * unit, float(row[4]) * unit, float(row[5])))
    return found


def command(
    hca: str,
    port: int,
    tcp_port: int,
    seconds: int,
    *,
    gid_index: int | None = None,
    numa: int | None = None,
    server: str | None = None,
) -> list[str]:
    """The program's arguments; ``server`` is the other node's address for the client's side, None for the server's."""
    argv = [PROGRAM, "-d", hca, "-i", str(port), "-p", str(tcp_port), "-D", str(seconds), "-F", "--report_gbits"]
    if gid_index is not None:
        argv += ["-x", str(gid_index)]
    if server is not None:
        argv.append(server)
    # The far socket costs a fifth of the bandwidth.
    if numa is not None and shutil.which("numactl"):
        argv = ["numactl", f"--cpunodebind={numa}", f"--membind={numa}", *argv]
    return argv


def failure(text: str, code: int) -> MeasurementFailedError | PeerUnreachableError:
    """What the program's words mean."""
    if "Couldn't connect" in text or "Unable to init the socket connection" in text:
        return PeerUnreachableError(
            f"{PROGRAM} cannot reach its server: check the route and that the firewall lets the TCP port pass"
        )
    if "not found" in text and "IB device" in text:
        return MeasurementFailedError(f"{PROGRAM} does not know this adapter: {_line(text, 'IB device')}")
    if "memlock" in text or "Couldn't allocate MR" in text or "Cannot allocate memory" in text:
        return MeasurementFailedError(f"{PROGRAM} may not lock memory: raise LimitMEMLOCK of the agent's service to infinity")
    words = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("-*")]
    return MeasurementFailedError(f"{PROGRAM} ended with exit code {code}: {words[-1] if words else 'it said nothing'}")


def _line(text: str, word: str) -> str:
    return next((line.strip() for line in text.splitlines() if word in line), "")


class Server:
    """The serving end, good for one test. Always :meth:`close`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, argv: Sequence[str]) -> Server:
        """Starts what :func:`command` gave and waits until it listens.

        Raises:
            ProgramMissingError: the program is not installed.
            MeasurementFailedError: it ended before it listened.
        """
        server = cls(await _start(argv))
        try:
            async with asyncio.timeout(_SLACK):
                await server._listening()
        except TimeoutError:
            await server.close()
            raise MeasurementFailedError(f"{PROGRAM} did not begin to listen within {_SLACK:.0f} s") from None
        except BaseException:
            await server.close()
            raise
        return server

    async def _listening(self) -> None:
        assert self._process.stdout is not None
        said = b""
        while b"Waiting for client" not in said:
            line = await self._process.stdout.readline()
            if not line:
                raise failure(said.decode(errors="replace"), await self._process.wait())
            said += line

    async def close(self) -> None:
        await _end(self._process)


async def run(argv: Sequence[str], seconds: float) -> RdmaResult:
    """The client's side: runs what :func:`command` gave.

    Raises:
        ProgramMissingError, PeerUnreachableError, MeasurementFailedError
    """
    process = await _start(argv)
    try:
        async with asyncio.timeout(seconds + _SLACK):
            out, _ = await process.communicate()
    except TimeoutError:
        raise MeasurementFailedError(f"{PROGRAM} did not end {_SLACK:.0f} s after its time and was stopped") from None
    finally:
        await _end(process)
    text = out.decode(errors="replace")
    found = parse(text)
    if process.returncode or not found:
        raise failure(text, process.returncode or 0)
    return found[-1]


async def _start(argv: Sequence[str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ProgramMissingError(f"{argv[0]} is not installed: install the package perftest, or test over TCP") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await process.wait()
