"""The live loop: samples and events from a long-lived helper become conditions, quarantines and metrics.

The helper is replaced when it hangs or dies. When it hangs in one GPU's calls, the next one leaves that GPU out, so that the
others go on being watched; the GPU is quarantined until a re-test, made by the short-lived probe, finds it well.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw_agent.hardware import nvml_look
from llmgw_agent.hardware.health import Health, Report, node_problem
from llmgw_agent.hardware.health_rules import xid
from llmgw_agent.hardware.health_store import HealthStore
from llmgw_agent.hardware.helper import Helper, HelperEndedError, HelperStalledError
from llmgw_agent.hardware.observations import Observer
from llmgw_agent.hardware.power import PowerCapRefusedError, PowerLimits, plan, refusal
from llmgw_agent.hardware.raw import Event, Gpu, Ports, PowerAnswer, Sample, Stuck, TelemetryLine
from llmgw_base.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

SAMPLER = "llmgw_agent.hardware.sampler"
_decoder = msgspec.json.Decoder(TelemetryLine)
_DOUBLE_BIT, _XID = 2, 8
_BACKOFF = (1.0, 2.0, 5.0, 15.0, 30.0)
_RETEST_EVERY = 60.0


@dataclass(frozen=True)
class Settings:
    """Seconds. ``every``: between samples. ``stall``: how long a driver call or the helper may be silent."""

    every: float = 1.0
    rarely: int = 10
    stall: float = 5.0
    sysfs_root: Path = Path("/sys")


class Telemetry:
    """Runs the loop; ``publish`` gets a report at each change, ``on_sample`` every sample (for metrics).

    Both are plain functions that must not block. Run :meth:`run` as a task; it ends only by cancellation.
    """

    def __init__(
        self,
        publish: Callable[[Report], None],
        on_sample: Callable[[Sample | Ports | Event], None] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        store: HealthStore | None = None,
        module: str = SAMPLER,
    ) -> None:
        self._publish = publish
        self._on_sample = on_sample
        self._settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._store = store
        self._module = module
        self._health = Health()
        self._observer = Observer()
        self._helper: Helper | None = None
        self._skip: dict[int, str | None] = {}
        self._uuids: dict[int, str] = {}
        self._trouble: str | None = None
        self._probe: asyncio.Task[None] | None = None
        self._next_probe = 0.0
        self._power: dict[str, asyncio.Future[int]] = {}
        self._restart = False
        if store is not None:
            self._health.restore(self._clock.monotonic(), store.load())

    @property
    def report(self) -> Report:
        """What stands now."""
        report = self._health.report()
        if self._trouble is None:
            return report
        return Report([node_problem(self._trouble), *report.problems], report.quarantine)

    # --- the loop ---

    async def run(self) -> None:
        """Watches until cancelled."""
        failures = 0
        try:
            while True:
                self._restart = False
                good = await self._watch()
                failures = 0 if good else failures + 1
                if not self._restart:
                    await self._clock.sleep(_BACKOFF[min(failures, len(_BACKOFF)) - 1] if failures else _BACKOFF[0])
        finally:
            if self._probe is not None:
                self._probe.cancel()
                with suppress(asyncio.CancelledError):
                    await self._probe

    async def _watch(self) -> bool:
        """One helper's life; whether it gave any sample."""
        settings = self._settings
        # The helper's watchdog names the GPU, so it must speak before the agent gives up on the helper.
        options = {
            "every": settings.every,
            "rarely": settings.rarely,
            "stall": settings.stall * 0.8,
            "sysfs_root": str(settings.sysfs_root),
            "skip": sorted(self._skip),
        }
        try:
            helper = self._helper = await Helper.start(self._module, [json.dumps(options)])
        except OSError as error:
            self._fail(f"the telemetry helper cannot be started: {error}")
            return False
        good = False
        try:
            while not self._restart:
                line = await helper.line(max(settings.stall, 2 * settings.every))
                good |= self._take(_decoder.decode(line))
        except HelperStalledError:
            self._fail(f"the telemetry helper has said nothing for {settings.stall:g} s; it is being replaced")
        except HelperEndedError as error:
            self._fail(f"telemetry broke off and is started again: {error}")
        except msgspec.MsgspecError as error:
            self._fail(f"the telemetry helper printed what cannot be read: {error}")
        finally:
            self._helper = None
            for answer in self._power.values():
                answer.cancel()
            await helper.close()
        return good

    def _take(self, line: TelemetryLine) -> bool:
        now = self._clock.monotonic()
        match line:
            case Sample(error=0):
                changed = self._trouble is not None
                self._trouble = None
                self._uuids |= {gpu.index: gpu.uuid for gpu in line.gpus}
                changed |= self._health.observe(now, self._observer.gpus(line.gpus), [gpu.uuid for gpu in line.gpus])
                self._changed(changed)
                self._look_again(now)
            case Sample():
                # No driver here, or none that works: the probe has said so. The helper goes on for the ports.
                changed = self._trouble is not None
                self._trouble = None
                self._changed(changed)
            case Ports():
                seen = self._observer.ports(now, line.ports)
                self._changed(self._health.observe(now, seen, [port.name for port in line.ports]))
            case Event():
                self._event(now, line)
            case Stuck():
                self._stuck(now, line)
                return False
            case PowerAnswer():
                waiting = self._power.get(line.uuid)
                if waiting is not None and not waiting.done():
                    waiting.set_result(line.error)
                return True
        if self._on_sample is not None and isinstance(line, Sample | Ports | Event):
            self._on_sample(line)
        return True

    def _event(self, now: float, event: Event) -> None:
        if event.type == _XID:
            name, detail = xid(event.data)
        elif event.type == _DOUBLE_BIT:
            name, detail = "ecc", "double-bit"
        else:
            return
        logger.warning("GPU event", extra={"fields": {"gpu": event.uuid, "event": name, "detail": detail}})
        self._changed(self._health.event(now, (event.uuid, name, detail)))

    def _stuck(self, now: float, stuck: Stuck) -> None:
        self._restart = True
        if stuck.ports:
            self._fail("reading the counters of RDMA ports hangs: the firmware of a card may be stuck; see 'dmesg'")
        elif stuck.index is None:
            self._fail("the driver does not answer: see 'dmesg', and reboot the node if it stays")
        else:
            # A helper that hangs when it opens the GPU does not know its name; an earlier one may have told it.
            uuid = stuck.uuid or self._uuids.get(stuck.index)
            self._skip[stuck.index] = uuid
            logger.error("driver call hangs", extra={"fields": {"gpu": uuid, "index": stuck.index}})
            self._changed(self._health.event(now, (uuid or f"GPU {stuck.index}", "hung", "")))

    def _fail(self, text: str) -> None:
        logger.error("hardware telemetry failed", extra={"fields": {"cause": text}})
        changed = self._trouble != text
        self._trouble = text
        self._changed(changed)

    def _changed(self, changed: bool) -> None:
        if not changed:
            return
        self._publish(self.report)
        if self._store is not None:
            self._store.save(self._health.export(self._clock.monotonic()))

    # --- re-tests ---

    def _look_again(self, now: float) -> None:
        """Starts a re-test by the short-lived probe when one is due and none runs."""
        lost = [problem.subject for problem in self._health.report().problems if problem.code == "gpu-lost"]
        due = self._health.due_for_retest(now)
        if now < self._next_probe or not (due or lost or self._skip) or (self._probe is not None and not self._probe.done()):
            return
        self._next_probe = now + _RETEST_EVERY
        self._probe = asyncio.create_task(self._retest(due, lost))

    async def _retest(self, due: list[str], lost: list[str]) -> None:
        facts = await nvml_look.look(self._settings.stall)
        now = self._clock.monotonic()
        well = {gpu.uuid for gpu in facts.gpus.values() if _well(gpu)} if facts.complete else set()
        back = [index for index, uuid in self._skip.items() if index in facts.gpus and (uuid is None or uuid in well)]
        for index in back:
            del self._skip[index]
        # The old helper does not see a GPU that came back: its handle is of the time before.
        self._restart = bool(back) or any(uuid in well for uuid in lost)
        changed = False
        for uuid in due:
            changed |= self._health.retested(now, uuid, uuid in well)
        self._changed(changed)

    # --- the operator, the coordinator ---

    def restart(self) -> None:
        """Starts a new helper with the next sample: for a driver that was loaded or GPUs that were reset meanwhile."""
        self._restart = True

    def hold(self, subject: str, reason: str) -> None:
        """The operator sets a GPU (UUID) or port (``mlx5_0:1``) aside."""
        self._changed(self._health.hold(self._clock.monotonic(), subject, reason))

    def lift(self, subject: str) -> None:
        """The operator lifts a quarantine; what still shows comes back with the next sample."""
        self._changed(self._health.lift(subject))

    async def set_power(self, uuid: str, limits: PowerLimits, watts: float | None) -> float:
        """Sets a power cap in watts, None restores the default; the limit that now holds.

        Raises:
            PowerCapError: it cannot be set; the message says why.
        """
        limit = plan(uuid, limits, watts)
        if self._helper is None:
            raise PowerCapRefusedError(f"{uuid}: the power limit was not set: telemetry is not running; try again")
        if uuid in self._power:
            raise PowerCapRefusedError(f"{uuid}: the power limit was not set: another one is being set; try again")
        answer = self._power[uuid] = asyncio.get_running_loop().create_future()
        try:
            await self._helper.say(json.dumps({"uuid": uuid, "limit": limit}))
            async with asyncio.timeout(self._settings.stall):
                code = await answer
        except TimeoutError:
            raise PowerCapRefusedError(f"{uuid}: the driver did not answer within {self._settings.stall:g} s") from None
        except asyncio.CancelledError:
            # Cancelled by the end of the helper, unless whoever called is being cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise PowerCapRefusedError(f"{uuid}: the power limit was not set: telemetry broke off; try again") from None
        finally:
            del self._power[uuid]
        if code:
            raise refusal(uuid, code)
        return limit / 1000


def _well(gpu: Gpu) -> bool:
    pending = gpu.remapped is not None and (gpu.remapped[2] or gpu.remapped[3])
    return not (gpu.error or gpu.reset_required or gpu.recovery_action or gpu.retired_pending or pending)


def power_limits(topology: Mapping[str, object], uuid: str) -> PowerLimits:
    """The limits of a GPU from the published topology; all None for a GPU that is not there."""
    gpus = topology.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else []:
        if gpu.get("uuid") == uuid:
            power = gpu.get("power") or {}
            return PowerLimits(power.get("min"), power.get("max"), power.get("default"))
    return PowerLimits(None, None, None)
