"""What NVML knows about one GPU, as plain JSON (runs in the helper processes)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import pynvml

from llmgw_agent.hardware.nvml_calls import (
    GPU_IS_LOST,
    Asker,
    GpuLostError,
    NvmlFailedError,
    call,
    pci_address,
    remote_address,
    text,
)

_RETIRED_PENDING, _LINK_COUNT, _SWITCH_LINKS = 31, 91, 147
_RECOVERY_ACTION, _LINK_STATE, _LINK_SPEED = 230, 165, 164
_C2C_COUNT = 170
_FALLBACK_LINKS = 36
_LINK_ERRORS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data", 4: "ecc"}


def identity(index: int, handle: Any) -> dict[str, Any]:
    """Who the GPU is and what it is set to. ``error`` is 15 when it was lost meanwhile; what was read before is kept."""
    ask = Asker()
    facts: dict[str, Any] = {"kind": "gpu", "index": index, "error": 0}
    try:
        _identity(ask, handle, facts)
        _settings(ask, handle, facts)
        _health(ask, handle, facts)
        facts["fabric"] = _fabric(ask, handle, facts.get("cc"))
        facts["platform"] = _platform(ask, handle)
        facts["processes"] = processes(ask, handle)
        facts["mig"] = _mig(ask, handle)
    except GpuLostError:
        facts["error"] = GPU_IS_LOST
    facts["failed"] = ask.failed
    facts["denied"] = sorted(ask.denied)
    facts["reset_required"] = ask.reset
    return facts


def _identity(ask: Asker, handle: Any, facts: dict[str, Any]) -> None:
    pci = ask("nvmlDeviceGetPciInfo", handle)
    if pci is not None:
        facts["pci"] = remote_address(pci.busId) or pci_address(pci.domain, pci.bus, pci.device)
    facts["uuid"] = text(ask("nvmlDeviceGetUUID", handle))
    facts["name"] = text(ask("nvmlDeviceGetName", handle))
    facts["serial"] = text(ask("nvmlDeviceGetSerial", handle))
    facts["minor"] = ask("nvmlDeviceGetMinorNumber", handle)
    facts["vbios"] = text(ask("nvmlDeviceGetVbiosVersion", handle))
    facts["arch"] = ask("nvmlDeviceGetArchitecture", handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    facts["cc"] = None if capability is None else [capability[0], capability[1]]
    module = ctypes.c_uint()
    with suppress(NvmlFailedError):
        # In this form the binding returns the code; in the other it fills an object shared by all callers.
        if call("nvmlDeviceGetModuleId", handle, ctypes.byref(module)) == 0:
            facts["module"] = module.value
    facts["virtualization"] = ask("nvmlDeviceGetVirtualizationMode", handle)
    facts["hbm_numa"] = ask("nvmlDeviceGetNumaNodeId", handle)
    facts["numa_nodes"] = _bits(ask("nvmlDeviceGetMemoryAffinity", handle, 16, 0))
    facts["cpus"] = _bits(ask("nvmlDeviceGetCpuAffinityWithinScope", handle, 32, 0))


def _bits(words: Any) -> list[int]:
    """The set bits of an affinity mask of 64-bit words."""
    if words is None:
        return []
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _settings(ask: Asker, handle: Any, facts: dict[str, Any]) -> None:
    facts["power_limit"] = ask("nvmlDeviceGetPowerManagementLimit", handle)
    facts["power_default"] = ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    facts["power_enforced"] = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    limits = ask("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    facts["power_range"] = None if limits is None else [int(each) for each in limits]
    ecc = ask("nvmlDeviceGetEccMode", handle)
    facts["ecc"] = None if ecc is None else [int(each) for each in ecc]
    facts["persistence"] = ask("nvmlDeviceGetPersistenceMode", handle)
    facts["clock_max_sm"] = ask("nvmlDeviceGetMaxClockInfo", handle, 1)
    facts["clock_max_mem"] = ask("nvmlDeviceGetMaxClockInfo", handle, 2)
    facts["pcie_max_gen"] = ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    facts["pcie_max_width"] = ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
    facts["temp_slowdown"] = ask("nvmlDeviceGetTemperatureThreshold", handle, 1)


def _health(ask: Asker, handle: Any, facts: dict[str, Any]) -> None:
    live(ask, handle, facts)
    # Newer cards remap rows instead of retiring pages.
    if facts["cc"] is not None and facts["cc"][0] < 8:
        retired = [ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)]
        if retired[0] is not None:
            facts["retired_pages"] = sum(len(each or []) for each in retired)


def live(ask: Asker, handle: Any, facts: dict[str, Any]) -> None:
    """Adds what changes from second to second; the sampler reads exactly this.

    Raises:
        GpuLostError: the GPU is gone.
    """
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        facts["memory_total"], facts["memory_used"] = int(memory.total), int(memory.used)
    facts["temperature"] = _temperature(ask, handle)
    facts["power"] = ask("nvmlDeviceGetPowerUsage", handle)
    use = ask("nvmlDeviceGetUtilizationRates", handle)
    facts["utilization"] = None if use is None else [int(use.gpu), int(use.memory)]
    facts["clock_sm"] = ask("nvmlDeviceGetClockInfo", handle, 1)
    facts["clock_mem"] = ask("nvmlDeviceGetClockInfo", handle, 2)
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    facts["throttle"] = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) if reasons is None else reasons
    facts["pcie_gen"] = ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)
    facts["pcie_width"] = ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    facts["ecc_corrected"] = ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0)
    facts["ecc_uncorrected"] = ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    remapped = ask("nvmlDeviceGetRemappedRows", handle)
    facts["remapped"] = None if remapped is None else [int(each) for each in remapped]
    facts["retired_pending"], facts["recovery_action"] = ask.fields(handle, [_RETIRED_PENDING, _RECOVERY_ACTION])


def _temperature(ask: Asker, handle: Any) -> int | None:
    new = ask("nvmlDeviceGetTemperatureV", handle, 0)
    found = ask("nvmlDeviceGetTemperature", handle, 0) if new is None else new
    return None if found is None else int(found)


def processes(ask: Asker, handle: Any) -> list[dict[str, Any]]:
    """Compute processes as [{pid, memory}]; memory is None where the driver does not tell."""
    found = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    return [{"pid": int(each.pid), "memory": each.usedGpuMemory} for each in found or []]


def _fabric(ask: Asker, handle: Any, capability: list[int] | None) -> dict[str, Any] | None:
    if capability is not None and capability[0] < 9:
        return None
    info, newest = pynvml.c_nvmlGpuFabricInfo_v3_t(), True
    done = ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    if done is None:
        ask.failed.pop("nvmlDeviceGetGpuFabricInfoV", None)
        info, newest = pynvml.c_nvmlGpuFabricInfo_v2_t(), False
        done = ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
    if done is None:
        return None
    return {
        "state": int(info.state),
        "status": int(info.status),
        "cluster": bytes(info.clusterUuid).hex(),
        "clique": int(info.cliqueId),
        "health_mask": int(info.healthMask),
        "health_summary": int(info.healthSummary) if newest else None,
    }


def _platform(ask: Asker, handle: Any) -> dict[str, Any] | None:
    maker = getattr(pynvml, "c_nvmlPlatformInfo_v2_t", None)
    if maker is None:
        return None
    info = maker()
    if ask("nvmlDeviceGetPlatformInfo", handle, ctypes.byref(info)) is None:
        ask.failed.pop("nvmlDeviceGetPlatformInfo", None)
        return None
    # Read as bytes: the binding's text fields break at zero bytes and turn small numbers into control characters.
    raw = ctypes.string_at(ctypes.addressof(info), ctypes.sizeof(info))
    return {
        "chassis": raw[20:36].split(b"\0")[0].decode("ascii", "replace"),
        "slot": raw[36],
        "tray": raw[37],
        "host": raw[38],
        "module": raw[40],
    }


def _mig(ask: Asker, handle: Any) -> dict[str, Any] | None:
    mode = ask("nvmlDeviceGetMigMode", handle)
    if mode is None:
        return None
    facts: dict[str, Any] = {"current": int(mode[0]), "pending": int(mode[1]), "instances": []}
    if mode[0]:
        most = ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        for at in range(most):
            part = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, at, indexed=True)
            if part is not None:
                facts["instances"].append(_instance(ask, part))
    return facts


def _instance(ask: Asker, part: Any) -> dict[str, Any]:
    memory = ask("nvmlDeviceGetMemoryInfo", part)
    return {
        "uuid": text(ask("nvmlDeviceGetUUID", part)),
        "name": text(ask("nvmlDeviceGetName", part)),
        "gpu_instance": ask("nvmlDeviceGetGpuInstanceId", part),
        "compute_instance": ask("nvmlDeviceGetComputeInstanceId", part),
        "memory_total": None if memory is None else int(memory.total),
        "memory_used": None if memory is None else int(memory.used),
    }


def links(index: int, handle: Any, capability: list[int] | None) -> dict[str, Any]:
    """The GPU's NVLinks: state, version, speed, remote end and error counters of each."""
    ask = Asker()
    facts: dict[str, Any] = {"kind": "links", "index": index, "links": [], "switch_links": None, "error": 0}
    try:
        count, facts["switch_links"], facts["c2c"] = ask.fields(handle, [_LINK_COUNT, _SWITCH_LINKS, _C2C_COUNT])
        for at in range(_FALLBACK_LINKS if count is None else count):
            found = _link(ask, handle, at, hopper=capability is not None and capability[0] >= 9)
            if found is None and count is None:
                break
            if found is not None:
                facts["links"].append(found)
    except GpuLostError:
        facts["error"] = GPU_IS_LOST
    return facts


def _link(ask: Asker, handle: Any, at: int, hopper: bool) -> dict[str, Any] | None:
    state, speed = ask.fields(handle, [(_LINK_STATE, at), (_LINK_SPEED, at)]) if hopper else (None, None)
    if state is None:
        state = ask("nvmlDeviceGetNvLinkState", handle, at, indexed=True)
    if state is None:
        return None
    facts: dict[str, Any] = {"link": at, "state": int(state), "speed": speed}
    facts["version"] = ask("nvmlDeviceGetNvLinkVersion", handle, at, indexed=True)
    if state in (1, 2, 3):
        facts["remote_type"] = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, at, indexed=True)
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, at, indexed=True)
        facts["remote"] = None if remote is None else remote_address(remote.busId)
        p2p = ask("nvmlDeviceGetNvLinkCapability", handle, at, 0, indexed=True)
        facts["p2p"] = None if p2p is None else bool(getattr(p2p, "value", p2p))
    facts["errors"] = link_errors(ask, handle, at)
    return facts


def link_errors(ask: Asker, handle: Any, at: int) -> dict[str, int]:
    """Error counters of one link that are not zero."""
    found = {
        name: ask("nvmlDeviceGetNvLinkErrorCounter", handle, at, code, indexed=True) for code, name in _LINK_ERRORS.items()
    }
    return {name: int(value) for name, value in found.items() if value}


def pair(handle: Any, other: Any) -> dict[str, Any]:
    """How two GPUs reach each other: PCI ancestor level, P2P read and NVLink status codes, None where not told."""
    ask = Asker()
    try:
        return {
            "ancestor": ask("nvmlDeviceGetTopologyCommonAncestor", handle, other),
            # 0, not the binding's NVML_P2P_CAPS_INDEX_READ, which is a tuple by mistake.
            "read": ask("nvmlDeviceGetP2PStatus", handle, other, 0),
            "nvlink": ask("nvmlDeviceGetP2PStatus", handle, other, 2),
        }
    except GpuLostError:
        return {"ancestor": None, "read": None, "nvlink": None}
