"""The part of RDMA ports that changes, as plain JSON, cheap enough for every second (runs in the helper)."""

from __future__ import annotations

import re
from typing import Any

from llmgw_agent.hardware.sysfs import Tree

#: The counters that say something about health and load; a card has a hundred more.
COUNTERS = {
    "port_xmit_data": "port_xmit_bytes",
    "port_rcv_data": "port_rcv_bytes",
    "port_xmit_packets": "port_xmit_packets",
    "port_rcv_packets": "port_rcv_packets",
    "symbol_error": "symbol_error",
    "link_downed": "link_downed",
    "link_error_recovery": "link_error_recovery",
    "local_link_integrity_errors": "local_link_integrity_errors",
    "port_rcv_errors": "port_rcv_errors",
    "port_xmit_discards": "port_xmit_discards",
    "port_xmit_wait": "port_xmit_wait",
    "VL15_dropped": "vl15_dropped",
}
HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "link_downed",
)


def read_ports(tree: Tree) -> list[dict[str, Any]]:
    """State and counters of all ports with hardware behind them; data counters in bytes."""
    return [
        {"hca": hca, "port": int(port), **read_state(tree, hca, port), "counters": _counters(tree, hca, port)}
        for hca in tree.names("class/infiniband")
        if tree.has("class/infiniband", hca, "device")
        for port in tree.names("class/infiniband", hca, "ports")
        if port.isdigit()
    ]


def refresh(tree: Tree, ports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same ports with their states of now; counters are as they were. A sixth of the files of :func:`read_ports`."""
    return [port | read_state(tree, port["hca"], str(port["port"])) for port in ports]


def _counters(tree: Tree, hca: str, port: str) -> dict[str, int]:
    place = f"class/infiniband/{hca}/ports/{port}"
    counters: dict[str, int] = {}
    for name, shown in COUNTERS.items():
        value = tree.number(place, "counters", name)
        if value is not None:
            counters[shown] = value * 4 if shown.endswith("_bytes") else value
    for name in HARDWARE_COUNTERS:
        value = tree.number(place, "hw_counters", name)
        if value is not None:
            counters.setdefault(name, value)
    return counters


def read_state(tree: Tree, hca: str, port: str) -> dict[str, Any]:
    place = f"class/infiniband/{hca}/ports/{port}"
    state = (tree.text(place, "state") or "").rpartition(":")[2].strip()
    rate = re.match(r"\d+(\.\d+)?", tree.text(place, "rate") or "") if state == "ACTIVE" else None
    return {
        "state": state,
        "phys_state": (tree.text(place, "phys_state") or "").rpartition(":")[2].strip(),
        "link_layer": tree.text(place, "link_layer") or "InfiniBand",
        "rate": float(rate[0]) if rate else None,
    }
