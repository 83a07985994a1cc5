"""Before an attempt: does the head reach the other nodes, and how fast? Finding out here beats an engine that hangs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from llmgw_agent.errors import AttemptError
from llmgw_agent.hardware.bandwidth.errors import BandwidthError, PortsBusyError
from llmgw_agent.shard.context import Context
from llmgw_base.etcd.errors import StoreError
from llmgw_proto import agent_pb2
from llmgw_proto.records import BadRecordError

#: Another test may run on one of the nodes; and a node that has only just joined is known to all a moment later.
BUSY_TRIES, LOST_TRIES, PAUSE = 20, 3, 1.0
logger = logging.getLogger(__name__)


async def check_links(context: Context, own_address: str, others: Mapping[str, str]) -> None:
    """``others``: addresses by node.

    Raises:
        AttemptError: a link does not work, or gives less than ``engines.gang.minimum_gbps``; names both ends.
    """
    for node, address in others.items():
        await _check(context, f"node {context.node} ({own_address})", node, f"node {node} ({address})")


async def _check(context: Context, here: str, node: str, there: str) -> None:
    settings = context.config.engines.gang
    # Half a second does not hurt what else runs on these nodes.
    request = agent_pb2.BandwidthRequest(peer=node, seconds=settings.link_seconds, force=True)
    for attempt in range(1, BUSY_TRIES + 1):
        try:
            result = await context.measure(request)
            break
        except PortsBusyError as error:
            busy = str(error)
            await context.clock.sleep(PAUSE)
        except (BandwidthError, StoreError, BadRecordError) as error:
            if attempt < LOST_TRIES:
                await context.clock.sleep(PAUSE)
                continue
            raise AttemptError(
                f"the link from {here} to {there} does not work: {error}. Open the hosts' firewalls to each other for all "
                "ports, and set engines.gang.address where engines are to meet on another network than node.address."
            ) from error
    else:
        logger.warning("link not tested", extra={"fields": {"to": node, "cause": busy}})
        return
    found = result.gigabits_per_second
    fields = {"from": here, "to": there, "gbps": round(found, 3), "method": result.method}
    logger.info("link tested", extra={"fields": fields})
    if found < settings.minimum_gbps:
        raise AttemptError(
            f"the link from {here} to {there} gives {found:.2f} Gb/s over {result.method}, less than "
            f"engines.gang.minimum_gbps = {settings.minimum_gbps:g}: look at cables and switch with `llmgwctl fabric`, or "
            "lower it."
        )
