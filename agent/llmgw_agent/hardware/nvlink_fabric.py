"""What the NVLink fabric (NVSwitch boxes, racks such as GB200 NVL72) says about each GPU. Pure.

A GPU on a switch can do nothing, not even work alone, until the fabric manager has let it in (CUDA error 802), though NVML
lists it as if all were well. So the fabric's state decides, not the links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_agent.hardware.conditions import NODE, Findings, subject
from llmgw_agent.hardware.problems import Code
from llmgw_agent.hardware.raw import Fabric, Gpu, Links

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = 0, 1, 2, 3
STATES = {NOT_SUPPORTED: "not supported", NOT_STARTED: "not started", IN_PROGRESS: "in progress", COMPLETED: "completed"}
_ZERO = "0" * 32
_UNHEALTHY = 2
_STATUS = {0: "success", 23: "insufficient resources"}
_RACK_WORDS = ("GB200", "GB300", "NVL72", "GH200 NVL")

#: healthMask: four fields of two bits, 1 = true (bad), 2 = false (good); 0 = no statement.
_MASK = {0: "reduced bandwidth", 2: "route recovery in progress", 4: "unhealthy route", 6: "access timeout recovery"}
#: Four bits at 8: 0 no statement, 1 nothing wrong.
_INCORRECT = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}


@dataclass(frozen=True)
class Membership:
    """``ready``: the GPU may be used as far as the fabric goes. ``domain`` names the NVLink domain that spans hosts, if any.

    GPUs on switches of one host reach each other only within one ``partition``.
    """

    ready: bool = True
    domain: str | None = None
    partition: str = ""


def mask_conditions(mask: int) -> list[str]:
    """What a health mask complains about, in words; 0xaa is perfectly healthy."""
    found = [text for shift, text in _MASK.items() if mask >> shift & 3 == 1]
    wrong = mask >> 8 & 15
    if wrong > 1:
        found.append(_INCORRECT.get(wrong, f"incorrect configuration {wrong}"))
    if mask >> 12 & 3 == 2:
        found.append("no partition assigned")
    if mask >> 14 & 3 == 2:
        found.append("fabric manager disconnected")
    return found


def membership(gpu: Gpu, links: Links | None) -> Membership:
    """Whether the fabric has let one GPU in, and in which domain it is."""
    fabric = gpu.fabric
    if fabric is None or fabric.state == NOT_SUPPORTED or not _switched(fabric, links):
        return Membership()
    if fabric.state != COMPLETED or fabric.status != 0:
        return Membership(ready=False)
    if fabric.cluster == _ZERO:
        return Membership(partition=str(fabric.clique))
    whole = not _unhealthy(fabric)
    name = f"{_uuid(fabric.cluster)}.{fabric.clique}"
    return Membership(domain=name if whole else None, partition=name)


def _switched(fabric: Fabric, links: Links | None) -> bool:
    """A PCIe card of a fabric-capable model without NVLink reports a fabric that never starts; that means nothing."""
    if fabric.cluster != _ZERO or fabric.state == COMPLETED:
        return True
    return links is not None and (bool(links.switch_links) or any(link.up for link in links.links))


def _unhealthy(fabric: Fabric) -> bool:
    return fabric.health_summary == _UNHEALTHY or bool(mask_conditions(fabric.health_mask))


def _uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def domain_of(members: Sequence[Membership]) -> str | None:
    """The domain that all of an island's GPUs are in."""
    domains = {member.domain for member in members}
    return domains.pop() if len(domains) == 1 else None


def judge(gpus: dict[int, Gpu], links: dict[int, Links], findings: Findings) -> dict[int, Membership]:
    """Memberships of all GPUs that can be read; what is wrong goes into ``findings``."""
    members = {index: membership(gpu, links.get(index)) for index, gpu in gpus.items()}
    out = {index for index, member in members.items() if not member.ready}
    if out and out == {index for index, gpu in gpus.items() if not gpu.error}:
        gpu = gpus[min(out)]
        code, text = _why(gpu)
        findings.problem(code, NODE, f"no GPU of this node can be used: {text}", *sorted(out))
    else:
        for index in sorted(out):
            code, text = _why(gpus[index])
            findings.problem(code, subject(gpus[index]), text, index)
    for index, gpu in gpus.items():
        if gpu.fabric is not None and members[index].ready:
            _attached(gpu, gpu.fabric, links.get(index), findings)
    return members


def _why(gpu: Gpu) -> tuple[Code, str]:
    assert gpu.fabric is not None
    if gpu.fabric.state == COMPLETED:
        status = _STATUS.get(gpu.fabric.status, f"status {gpu.fabric.status}")
        return Code.FABRIC_FAILED, (
            f"the NVLink fabric finished with an error ({status}): see the log of the fabric manager or of the rack's "
            "NVLink controller"
        )
    return Code.FABRIC_NOT_READY, (
        f"the NVLink fabric is {STATES.get(gpu.fabric.state, gpu.fabric.state)}: the fabric manager is missing, not running "
        "or of another version than the driver ('systemctl status nvidia-fabricmanager'); CUDA fails with error 802 till then"
    )


def _attached(gpu: Gpu, fabric: Fabric, links: Links | None, findings: Findings) -> None:
    rack = any(word in (gpu.name or "").upper() for word in _RACK_WORDS)
    if rack and fabric.cluster == _ZERO and links is not None and links.links:
        findings.problem(
            Code.FABRIC_NOT_REGISTERED,
            subject(gpu),
            "this GPU belongs in a rack's NVLink domain but is in none: NVLink works inside this host at most; "
            "check the rack's NVLink controller and its partition",
        )
    elif fabric.state == COMPLETED and _unhealthy(fabric):
        what = ", ".join(mask_conditions(fabric.health_mask)) or "the health summary says unhealthy"
        findings.problem(
            Code.FABRIC_UNHEALTHY,
            subject(gpu),
            f"the GPU is attached to the NVLink fabric, but not healthy ({what}): no replica will span hosts over it",
        )
