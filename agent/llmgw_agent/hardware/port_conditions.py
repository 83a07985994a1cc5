"""What is wrong with RDMA ports, bonds and PCIe links. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw_agent.hardware.conditions import Findings
from llmgw_agent.hardware.netdev import Netdev
from llmgw_agent.hardware.pci import PciDevice
from llmgw_agent.hardware.problems import Code
from llmgw_agent.hardware.rdma import Hca, Port

#: Device ids of mlx4 and mlx5 virtual functions.
_VIRTUAL_IDS = frozenset({0x1004, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E})


def judge_ports(hcas: Sequence[Hca], rails: Sequence[str], gpus_of: dict[str, list[str]], findings: Findings) -> None:
    """``rails`` are the HCAs that NCCL should use, ``gpus_of`` the GPUs that each is nearest to."""
    hardware = [hca for hca in hcas if not hca.software]
    cards: dict[str, list[Port]] = {}
    for hca in hardware:
        cards.setdefault(hca.image or hca.name, []).extend(hca.ports)
    for hca in hcas:
        if hca.software:
            findings.notes.append(f"{hca.name}: software RDMA, not used for collectives")
            continue
        if hca.virtual:
            findings.notes.append(f"{hca.name}: virtual function of {_physical(hca, hardware)}, left to guests")
            continue
        for port in hca.ports:
            if not port.active:
                _inactive(hca, port, cards[hca.image or hca.name], hardware, hca.name in rails, gpus_of, findings)
    _slow(hardware, findings)


def _physical(hca: Hca, hardware: Sequence[Hca]) -> str:
    address = hca.pci.physical if hca.pci is not None else None
    return next((other.name for other in hardware if other.pci is not None and other.pci.address == address), str(address))


def _inactive(
    hca: Hca,
    port: Port,
    card: list[Port],
    hardware: Sequence[Hca],
    rail: bool,
    gpus_of: dict[str, list[str]],
    findings: Findings,
) -> None:
    phys, infiniband = port.phys_state, port.link_layer == "InfiniBand"
    siblings = any(other.active for each in hardware if each.model == hca.model and each is not hca for other in each.ports)
    if any(other.active for other in card):
        findings.notes.append(f"{port.name}: {port.state}/{phys}, another port of the card is active")
        return
    # A rail counts when others of its kind work, and a port that was up before (it keeps its old LID). A host that has no cable
    # at all is not broken, it has no fabric.
    if not (phys == "LinkUp" or port.state in ("INIT", "ARMED") or (rail and siblings) or port.was_up):
        findings.notes.append(f"{port.name}: {port.state}/{phys}, no cable or switched off")
        return
    served = f"; it is the nearest port of {', '.join(gpus_of[hca.name])}" if gpus_of.get(hca.name) else ""
    if phys == "LinkUp" and port.state == "INIT" and infiniband:
        text = (
            "the link is up but no subnet manager has configured it: start opensm on one host, or the switch's subnet manager"
        )
        findings.problem(Code.IB_PORT_NOT_ACTIVE, port.name, text + served)
    elif phys == "LinkUp":
        text = f"the cable is connected but the port is {port.state}"
        if infiniband and _guest(hca):
            text += ": a virtual function needs its GUID and policy set by the host and the subnet manager"
        findings.problem(Code.IB_PORT_NOT_ACTIVE, port.name, text + served)
    else:
        findings.problem(
            Code.IB_PORT_DOWN, port.name, f"the port is {port.state}/{phys}: check cable, transceiver and switch port{served}"
        )


def _guest(hca: Hca) -> bool:
    """Seen from inside a guest a virtual function has no link to its physical one, but its device id says what it is."""
    return hca.pci is not None and (hca.pci.physical is not None or hca.pci.device in _VIRTUAL_IDS)


def _slow(hardware: Sequence[Hca], findings: Findings) -> None:
    fastest: dict[str, float] = {}
    for hca in hardware:
        for port in hca.ports:
            if port.active and port.rate and hca.model:
                fastest[hca.model] = max(fastest.get(hca.model, 0), port.rate)
    for hca in hardware:
        for port in hca.ports:
            best = fastest.get(hca.model, 0)
            if port.active and port.rate and port.link_layer == "InfiniBand" and port.rate < best:
                findings.problem(
                    Code.IB_PORT_SLOW,
                    port.name,
                    f"the link runs at {port.rate_text}, other {hca.model} ports here at {best:g} Gb/s: check cable and "
                    "switch port",
                )


def judge_bonds(netdevs: Iterable[Netdev], findings: Findings) -> None:
    for device in netdevs:
        dead = [member for member in device.members if member not in device.members_up]
        if device.members and dead:
            findings.problem(
                Code.BOND_DEGRADED,
                device.name,
                f"{len(dead)} of {len(device.members)} members of the bond are down ({', '.join(dead)}): check their cables",
            )


def judge_pcie(devices: Iterable[tuple[str, PciDevice]], findings: Findings) -> None:
    """Links with fewer lanes than card and slot have. Speed is not judged: idle cards lower it to save power."""
    for subject, device in devices:
        if not device.width or not device.max_width:
            continue
        possible = min(device.max_width, device.slot_width or device.max_width)
        if device.width < possible:
            findings.problem(
                Code.PCIE_WIDTH,
                subject,
                f"PCIe runs with {device.width} of {possible} lanes ({device.address}): reseat the card or its riser",
            )
