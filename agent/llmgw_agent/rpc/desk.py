"""What operators ask of the hardware: setting aside, lifting, power caps."""

from __future__ import annotations

import logging
from typing import Any

from llmgw_agent.live import LiveHardware
from llmgw_base.clock import Clock

#: After a lift, what still shows is back with the next sample; those come every second.
_ONE_SAMPLE = 1.5
logger = logging.getLogger(__name__)


class UnknownSubjectError(Exception):
    """There is no such GPU or port on this node. Reaction: tell whoever asked."""


class NotLookedError(Exception):
    """The hardware has not been looked at yet. Reaction: ask again in some seconds."""


class Desk:
    def __init__(self, node: str, hardware: LiveHardware, clock: Clock) -> None:
        self._node, self._hardware, self._clock = node, hardware, clock

    def hold(self, subject: str, reason: str) -> tuple[str, str]:
        """Sets a GPU or port aside; its own name and the quarantine.

        Raises:
            UnknownSubjectError, NotLookedError
        """
        known = self._known(subject)
        logger.warning("set aside by the operator", extra={"fields": {"subject": known, "cause": reason}})
        self._hardware.watch.telemetry.hold(known, reason.strip() or "set aside by the operator")
        return known, self._quarantine(known)

    async def lift(self, subject: str) -> tuple[str, str]:
        """Lifts what can be lifted, looks again, and returns the name and what stands then (empty: nothing).

        Raises:
            UnknownSubjectError, NotLookedError
        """
        known = self._known(subject)
        logger.warning("lifted by the operator", extra={"fields": {"subject": known, "was": self._quarantine(known)}})
        self._hardware.watch.telemetry.lift(known)
        await self._hardware.watch.look()
        await self._clock.sleep(_ONE_SAMPLE)
        return known, self._quarantine(known)

    async def set_power(self, gpu: str, watts: float | None) -> tuple[str, float]:
        """Sets a cap in watts, None restores the default; the name and what holds now.

        Raises:
            UnknownSubjectError, NotLookedError, PowerCapError
        """
        known = self._known(gpu)
        holds = await self._hardware.watch.set_power(known, watts)
        logger.warning("power limit set", extra={"fields": {"gpu": known, "watts": holds}})
        return known, holds

    def _topology(self) -> dict[str, Any]:
        found = self._hardware.watch.current
        if found is None:
            raise NotLookedError("the agent has not looked at its hardware yet; try again in some seconds")
        return found.topology()

    def _known(self, subject: str) -> str:
        topology = self._topology()
        for gpu in topology["gpus"]:
            parts = [part.get("uuid") for part in (gpu.get("mig") or {}).get("instances", [])]
            if gpu.get("uuid") and subject in (gpu["uuid"], *parts):
                return str(gpu["uuid"])
        if subject in (f"{port['hca']}:{port['port']}" for port in topology["rdma_ports"]):
            return subject
        raise UnknownSubjectError(
            f"node {self._node} has no GPU or port {subject!r}; `llmgwctl gpu list` and `llmgwctl node show` name them"
        )

    def _quarantine(self, subject: str) -> str:
        found = next((gpu for gpu in self._topology()["gpus"] if gpu.get("uuid") == subject), None)
        if found is not None:
            return str(found.get("quarantine") or "")
        return self._hardware.watch.telemetry.report.quarantine.get(subject, "")
