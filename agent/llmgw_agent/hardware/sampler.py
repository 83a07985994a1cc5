"""The long-lived helper process: ``python -m llmgw_agent.hardware.sampler OPTIONS_AS_JSON``.

It prints samples of all GPUs and RDMA ports as JSON lines, events (XID, ECC) as they happen, and sets power limits when told
so on standard input. It ends when standard input does, so it never outlives the agent.

GPUs, events and ports are read by threads of their own: a driver call that hangs stops its thread only, and the watchdog in the
main thread says which GPU it was.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmgw_agent.hardware import nvml_gpu
from llmgw_agent.hardware.nvml_calls import GPU_IS_LOST, TIMEOUT, Asker, GpuLostError, NvmlFailedError, call, text
from llmgw_agent.hardware.port_sample import read_ports, refresh
from llmgw_agent.hardware.sysfs import Tree

#: XIDs and double-bit ECC errors. Single-bit errors are counted in the samples; as events they can be a flood.
_EVENTS = 0x8 | 0x2
_WAIT_MS = 1000
#: Reading counters asks the card's firmware, reading states does not.
_COUNTERS_EVERY = 5
_PCIE_REPLAYS, _TX, _RX = 94, 138, 139


class Sampler:
    """``every`` seconds between samples; links and processes are read with every ``rarely``-th."""

    def __init__(self, every: float, rarely: int, stall: float, skip: set[int], tree: Tree) -> None:
        self._every, self._rarely, self._stall, self._skip = every, rarely, stall, skip
        self._tree = tree
        self._lock = threading.Lock()
        self._handles: dict[int, tuple[str, Any, bool]] = {}
        self._unopened: dict[int, int] = {}
        self._by_handle: dict[int, str] = {}
        self._at: tuple[int | None, float] | None = None
        self._ports_at = time.monotonic()

    def say(self, line: dict[str, Any]) -> None:
        encoded = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            try:
                sys.stdout.write(encoded)
                sys.stdout.flush()
            except BrokenPipeError:
                os._exit(0)

    # --- GPUs ---

    def _enter(self, index: int | None) -> None:
        self._at = index, time.monotonic()

    def gpus(self) -> None:
        """The GPU thread."""
        self._enter(None)
        try:
            call("nvmlInit")
            count = int(call("nvmlDeviceGetCount"))
        except NvmlFailedError as error:
            self._at = None
            self.say({"kind": "sample", "error": error.code, "gpus": []})
            return
        for index in range(count):
            if index not in self._skip:
                self._enter(index)
                self._open(index)
        events = self._register()
        self._at = None
        if events is not None:
            threading.Thread(target=self.events, args=(events,), daemon=True).start()
        turn = 0
        while True:
            started = time.monotonic()
            gpus = [self._sample(index, turn % self._rarely == 0) for index in self._handles]
            self.say({"kind": "sample", "gpus": gpus, "unopened": self._unopened})
            self._at = None
            turn += 1
            time.sleep(max(0.05, self._every - (time.monotonic() - started)))

    def _open(self, index: int) -> None:
        try:
            handle = call("nvmlDeviceGetHandleByIndex", index)
            hopper = call("nvmlDeviceGetCudaComputeCapability", handle)[0] >= 9
            uuid = text(call("nvmlDeviceGetUUID", handle))
            if uuid is not None:
                self._handles[index] = uuid, handle, hopper
        except NvmlFailedError as error:
            self._unopened[index] = error.code

    def _sample(self, index: int, full: bool) -> dict[str, Any]:
        uuid, handle, hopper = self._handles[index]
        self._enter(index)
        ask = Asker()
        facts: dict[str, Any] = {"index": index, "uuid": uuid, "error": 0}
        try:
            nvml_gpu.live(ask, handle, facts)
            facts["power_limit"] = ask("nvmlDeviceGetPowerManagementLimit", handle)
            facts["pcie_replays"], *facts["nvlink_bytes"] = _traffic(ask, handle)
            if full:
                facts["links"] = nvml_gpu.links(index, handle, [9, 0] if hopper else [8, 0])["links"]
                facts["processes"] = nvml_gpu.processes(ask, handle)
        except GpuLostError:
            facts["error"] = GPU_IS_LOST
        facts["reset_required"] = ask.reset
        return facts

    def _register(self) -> Any:
        """An event set with all GPUs that offer events, or None when the driver has none."""
        try:
            events = call("nvmlEventSetCreate")
        except NvmlFailedError:
            return None
        for index, (uuid, handle, _) in self._handles.items():
            self._enter(index)
            # Registering a type that a GPU does not have registers none at all.
            with suppress(NvmlFailedError):
                wanted = int(call("nvmlDeviceGetSupportedEventTypes", handle)) & _EVENTS
                if wanted:
                    call("nvmlDeviceRegisterEvents", handle, wanted, events)
                    self._by_handle[_address(handle)] = uuid
        return events

    def events(self, events: Any) -> None:
        """The event thread."""
        while True:
            try:
                event = call("nvmlEventSetWait_v2", events, _WAIT_MS)
            except NvmlFailedError as error:
                if error.code != TIMEOUT:
                    # Some GPU is lost: the samples say which. Do not spin on it.
                    time.sleep(_WAIT_MS / 1000)
                continue
            # Not asked of the GPU: after XID 79 it does not answer any more.
            uuid = self._by_handle.get(_address(event.device))
            if uuid is not None:
                self.say({"kind": "event", "uuid": uuid, "type": int(event.eventType), "data": int(event.eventData)})

    # --- ports, commands, watchdog ---

    def ports(self) -> None:
        """The port thread."""
        turn = 0
        ports: list[dict[str, Any]] = []
        while True:
            self._ports_at = time.monotonic()
            counted = turn % _COUNTERS_EVERY == 0
            ports = read_ports(self._tree) if counted else refresh(self._tree, ports)
            turn += 1
            self.say({"kind": "ports", "ports": ports, "counted": counted})
            time.sleep(self._every)

    def command(self, line: str) -> None:
        """``{"uuid": …, "limit": milliwatts}`` sets a power limit."""
        wish = json.loads(line)
        answer = {"kind": "power", "uuid": wish["uuid"], "limit": wish["limit"], "error": 0}
        try:
            handle = call("nvmlDeviceGetHandleByUUID", wish["uuid"].encode())
            call("nvmlDeviceSetPowerManagementLimit", handle, wish["limit"])
        except NvmlFailedError as error:
            answer["error"] = error.code
        self.say(answer)

    def watch(self) -> None:
        """The main thread: commands until standard input ends, and the watchdog."""
        told = False
        while True:
            ready, _, _ = select.select([sys.stdin], [], [], 0.5)
            if ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self.command(line)
            stuck = self._stuck()
            if stuck is not None and not told:
                self.say({"kind": "stuck", **stuck})
            told = stuck is not None

    def _stuck(self) -> dict[str, Any] | None:
        now, at = time.monotonic(), self._at
        if at is not None and now - at[1] > self._stall:
            return {"index": at[0], "uuid": self._handles[at[0]][0] if at[0] in self._handles else None}
        # Its turns come every so often; what is beyond that is a read that hangs.
        return {"ports": True} if now - self._ports_at > self._stall + self._every else None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _traffic(ask: Asker, handle: Any) -> list[int | None]:
    """PCIe replays, NVLink bytes sent and received over all links."""
    replays, sent, received = ask.fields(handle, [_PCIE_REPLAYS, _TX, _RX])
    return [replays, None if sent is None else sent * 1024, None if received is None else received * 1024]


def main(argv: list[str]) -> int:
    options = json.loads(argv[1]) if len(argv) > 1 else {}
    sampler = Sampler(
        every=options.get("every", 1.0),
        rarely=options.get("rarely", 10),
        stall=options.get("stall", 4.0),
        skip=set(options.get("skip", [])),
        tree=Tree(Path(options.get("sysfs_root", "/sys"))),
    )
    threading.Thread(target=sampler.gpus, daemon=True).start()
    threading.Thread(target=sampler.ports, daemon=True).start()
    sampler.watch()
    # Not a return: a thread stuck in the driver would keep the process.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
