"""The TCP test: both ends as helper processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmgw_agent.hardware.bandwidth.errors import MeasurementFailedError, PeerUnreachableError
from llmgw_agent.hardware.helper import Helper, HelperEndedError, HelperStalledError

MODULE = "llmgw_agent.hardware.bandwidth.tcp_helper"
#: Beyond the time of the test itself: connections, the last bytes, a loaded machine.
_SLACK = 40.0
SECONDS_AT_MOST = 60.0
STREAMS_AT_MOST = 64


@dataclass(frozen=True)
class TcpResult:
    """``bytes`` moved in ``seconds`` over ``streams`` connections at once."""

    bytes: int
    seconds: float
    streams: int

    @property
    def gigabits(self) -> float:
        """Gb/s of payload."""
        return self.bytes * 8 / self.seconds / 1e9 if self.seconds > 0 else 0.0


def _check(seconds: float, streams: int) -> None:
    if not 0 < seconds <= SECONDS_AT_MOST:
        raise ValueError(f"a test of {seconds:g} s: choose more than 0 and at most {SECONDS_AT_MOST:g} s")
    if not 1 <= streams <= STREAMS_AT_MOST:
        raise ValueError(f"{streams} streams: choose 1 to {STREAMS_AT_MOST}")


class Server:
    """The receiving end, good for one test by whoever knows the token. Always :meth:`close`."""

    def __init__(self, helper: Helper, port: int, seconds: float, streams: int) -> None:
        self._helper, self.port, self._seconds, self._streams = helper, port, seconds, streams

    @classmethod
    async def start(cls, host: str, token: str, seconds: float = 5.0, streams: int = 4, port: int = 0) -> Server:
        """Listens on ``host`` (port 0: any free one); ``token`` is any secret text that both ends know.

        Raises:
            ValueError: seconds or streams out of bounds.
            MeasurementFailedError: it cannot listen there.
        """
        _check(seconds, streams)
        options = {"role": "server", "host": host, "port": port, "token": token, "streams": streams}
        helper = await Helper.start(MODULE, [json.dumps(options)])
        try:
            said = await _answer(helper, _SLACK)
        except BaseException:
            await helper.close()
            raise
        return cls(helper, int(said["port"]), seconds, streams)

    async def result(self) -> TcpResult:
        """What has arrived, when the test is over.

        Raises:
            MeasurementFailedError: nobody came, or it broke off.
        """
        return _result(await _answer(self._helper, self._seconds + _SLACK), self._streams)

    async def close(self) -> None:
        await self._helper.close()


async def run(host: str, port: int, token: str, seconds: float = 5.0, streams: int = 4) -> TcpResult:
    """The sending end: sends for ``seconds``.

    Raises:
        ValueError: seconds or streams out of bounds.
        PeerUnreachableError: the server cannot be reached, or serves another test.
        MeasurementFailedError: it broke off.
    """
    _check(seconds, streams)
    options = {
        "role": "client",
        "host": host,
        "port": port,
        "token": token,
        "streams": streams,
        "seconds": seconds,
        "connect": 10,
    }
    helper = await Helper.start(MODULE, [json.dumps(options)])
    try:
        said = await _answer(helper, seconds + _SLACK)
    finally:
        await helper.close()
    return _result(said, streams)


async def _answer(helper: Helper, timeout: float) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(await helper.line(timeout))
    except (HelperEndedError, HelperStalledError) as error:
        raise MeasurementFailedError(f"the TCP test broke off: {error}") from error
    if "error" in said:
        raise PeerUnreachableError(
            f"the TCP test did not start: {said['error']}; check the address, the route and the firewall"
        )
    return said


def _result(said: dict[str, Any], streams: int) -> TcpResult:
    if not said["bytes"]:
        raise MeasurementFailedError("the TCP test moved no data: the connection was cut right after it was made")
    return TcpResult(int(said["bytes"]), float(said["seconds"]), streams)
