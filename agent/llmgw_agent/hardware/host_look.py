"""Runs the host probe with limits."""

from __future__ import annotations

import msgspec

from llmgw_agent.hardware.helper import Helper, HelperEndedError, HelperStalledError
from llmgw_agent.hardware.host_probe import HostFacts, Options

PROBE = "llmgw_agent.hardware.host_probe"
_decoder = msgspec.json.Decoder(HostFacts)


class HostProbeError(Exception):
    """The host probe gave no facts in time. Reaction: report it; what does not need sysfs goes on."""


async def look(options: Options, deadline: float, module: str = PROBE) -> HostFacts:
    """What sysfs, /proc and netlink tell, within ``deadline`` seconds.

    Raises:
        HostProbeError: the probe hung or broke off; the message says at what.
    """
    helper = await Helper.start(module, [msgspec.json.encode(options).decode()])
    try:
        return _decoder.decode(await helper.line(deadline))
    except HelperStalledError:
        raise HostProbeError(
            f"reading {options.sysfs_root} did not end within {deadline:.0f} s: the firmware of a network or RDMA card may "
            "hang; see 'dmesg'"
        ) from None
    except (HelperEndedError, msgspec.MsgspecError) as error:
        raise HostProbeError(f"the host probe broke off: {error}") from error
    finally:
        await helper.close()
