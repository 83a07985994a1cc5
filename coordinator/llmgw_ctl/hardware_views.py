"""Hardware of the fleet as tables and text: GPUs, NVLink domains, InfiniBand fabrics.

Pure: the JSON of the admin API and of the records in, grids and rich renderables out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from llmgw_base import hardware_view
from llmgw_base.hardware_view import row, table, text
from llmgw_ctl.grid import Column, Grid
from llmgw_ctl.humanize import age, size

Json = Mapping[str, Any]

NO_GPUS = "No node has GPUs that its agent can see. 'llmgw-agent detect' on a node says why."
NO_NVLINK = "No GPUs with NVLink."
NO_FABRICS = "No InfiniBand fabric has been mapped. A node with an active port and the package infiniband-diags does it."

_STYLES = {"ok": "green", "MIG": "cyan", "quarantined": "red", "gone": "dim"}


def topology_of(node: Json) -> Json:
    """What a node's agent published, empty when it has not yet."""
    found = (node.get("inventory") or {}).get("topology")
    return found if isinstance(found, dict) else {}


def node_hardware(node: Json) -> RenderableType:
    """The hardware part of ``node show``: the same as ``llmgw-agent detect`` prints on the node."""
    return hardware_view.node(topology_of(node))


# --- gpu list ---


def gpus_grid(nodes: Sequence[Json], used_by: Mapping[str, str] | None = None) -> Grid:
    """All GPUs of the fleet; ``used_by`` is GPU UUID → replica. MIG instances stand in for their GPU."""
    columns = (
        Column("NODE"),
        Column("GPU"),
        Column("CLASS"),
        Column("MEMORY", "right"),
        Column("NUMA", "right"),
        Column("NVLINK"),
        Column("NIC"),
        Column("STATE"),
        Column("REPLICA"),
        Column("UUID"),
        Column("REASON", fold=True),
    )
    rows: list[tuple[str, ...]] = []
    for node in sorted(nodes, key=lambda each: str(each.get("name", ""))):
        topology = topology_of(node)
        quarantine = _quarantines(node)
        island_of = _islands(topology)
        for gpu in topology.get("gpus", []):
            key = hardware_view.gpu_key(gpu)
            reason = str(quarantine.get(key) or gpu.get("quarantine") or "")
            nics = ", ".join(topology.get("gpu_nics", {}).get(key, []))
            for uuid, name, memory in _parts(gpu):
                rows.append(
                    (
                        str(node.get("name", "")),
                        f"GPU{gpu.get('index', '?')}",
                        name,
                        size(memory),
                        "-" if gpu.get("numa") is None else str(gpu["numa"]),
                        island_of.get(key, "-"),
                        nics or "-",
                        _state(node, gpu, reason),
                        (used_by or {}).get(uuid, "-"),
                        uuid,
                        reason,
                    )
                )
    return Grid(columns, rows, NO_GPUS, _STYLES)


def _parts(gpu: Json) -> list[tuple[str, str, float | None]]:
    instances = (gpu.get("mig") or {}).get("instances", [])
    if instances:
        return [
            (str(each.get("uuid")), f"MIG {str(each.get('name') or '').rpartition(' ')[2]}", each.get("memory_bytes"))
            for each in instances
        ]
    return [(hardware_view.gpu_key(gpu), str(gpu.get("class") or "?"), gpu.get("memory_bytes"))]


def _state(node: Json, gpu: Json, reason: str) -> str:
    if not node.get("alive", True):
        return "gone"
    if reason:
        return "quarantined"
    return "MIG" if gpu.get("mig") else "ok"


def _islands(topology: Json) -> dict[str, str]:
    """GPU → ``island 0 of 8``."""
    return {
        str(uuid): f"island {at} of {len(island.get('uuids', []))}"
        for at, island in enumerate(topology.get("islands", []))
        for uuid in island.get("uuids", [])
    }


def gpus_data(nodes: Sequence[Json], used_by: Mapping[str, str]) -> list[dict[str, Any]]:
    """All GPUs as their agents publish them, each with ``node``, ``alive``, ``quarantine`` and ``replicas``."""
    found = []
    for node in sorted(nodes, key=lambda each: str(each.get("name", ""))):
        quarantine = _quarantines(node)
        for gpu in topology_of(node).get("gpus", []):
            key = hardware_view.gpu_key(gpu)
            replicas = sorted({used_by[uuid] for uuid, _, _ in _parts(gpu) if uuid in used_by})
            found.append(
                {
                    "node": node.get("name"),
                    "alive": bool(node.get("alive")),
                    **gpu,
                    "quarantine": quarantine.get(key) or gpu.get("quarantine"),
                    "replicas": replicas,
                }
            )
    return found


def _quarantines(node: Json) -> dict[str, str]:
    facts = (node.get("inventory") or {}).get("gpus", [])
    return {str(gpu["uuid"]): str(gpu["quarantine"]) for gpu in facts if gpu.get("uuid") and gpu.get("quarantine")}


# --- nvlink ---


def nvlink(nodes: Sequence[Json]) -> RenderableType:
    """NVLink over the fleet: what is wrong, domains that span hosts, the islands of each node."""
    nodes = sorted(nodes, key=lambda each: str(each.get("name", "")))
    linked = [node for node in nodes if any(gpu.get("nvlink") for gpu in topology_of(node).get("gpus", []))]
    if not linked:
        return Text(NO_NVLINK)
    parts: list[RenderableType] = []
    wrong = _nvlink_problems(linked)
    if wrong is not None:
        parts += [wrong, ""]
    domains = _domains(linked)
    if domains is not None:
        parts += [domains, ""]
    made = table("NODE", "GPUS", "CLASS", "LINKS", "THROUGH", "ISLANDS", "GROUPS FOR TP")
    for node in linked:
        topology = topology_of(node)
        names = hardware_view.gpu_names(topology)
        gpus = [gpu for gpu in topology.get("gpus", []) if gpu.get("nvlink")]
        islands = topology.get("islands", [])
        row(
            made,
            node.get("name", ""),
            len(gpus),
            ", ".join(sorted({str(gpu.get("class")) for gpu in gpus})),
            _counts(hardware_view.nvlink_count(gpu) for gpu in gpus),
            "NVSwitch" if any((gpu.get("nvlink") or {}).get("switch") for gpu in gpus) else "bridges or baseboard",
            ", ".join(hardware_view.span(island.get("uuids", []), names) for island in islands) or text("none", "red"),
            ", ".join(hardware_view.span(group, names) for group in topology.get("tp_groups", [])) or "-",
        )
    return Group(*parts, made)


_NVLINK_FIELDS = ("islands", "tp_groups", "gpu_links")


def nvlink_data(nodes: Sequence[Json]) -> list[dict[str, Any]]:
    """Per node with NVLink: its islands, groups for tensor parallelism, the GPU matrix and what is wrong with it."""
    found = []
    for node in sorted(nodes, key=lambda each: str(each.get("name", ""))):
        topology = topology_of(node)
        gpus = [gpu for gpu in topology.get("gpus", []) if gpu.get("nvlink")]
        if gpus:
            wrong = [each for each in topology.get("problems", []) if _about_nvlink(each)]
            fields = {name: topology.get(name, []) for name in _NVLINK_FIELDS}
            found.append({"node": node.get("name"), "gpus": gpus, **fields, "problems": wrong})
    return found


def _about_nvlink(problem: Json) -> bool:
    return str(problem.get("code", "")).startswith(("nvlink", "fabric"))


def _counts(values: Iterable[str]) -> str:
    """``18/18`` when all are alike, else ``18/18 x7, 17/18``."""
    counted = Counter(values)
    return ", ".join(
        value if count == 1 or len(counted) == 1 else f"{value} x{count}" for value, count in counted.most_common()
    )


def _nvlink_problems(nodes: Sequence[Json]) -> RenderableType | None:
    found = [(node, each) for node in nodes for each in topology_of(node).get("problems", []) if _about_nvlink(each)]
    if not found:
        return None
    made = table("NODE", "PROBLEM", "AT", "WHAT")
    for node, each in found:
        subject = str(each.get("subject", ""))
        where = hardware_view.gpu_names(topology_of(node)).get(subject, subject)
        row(made, node.get("name", ""), text(each.get("code", ""), "bold red"), where, each.get("text", ""))
    return made


def _domains(nodes: Sequence[Json]) -> RenderableType | None:
    members: dict[str, list[tuple[Json, Json]]] = {}
    for node in nodes:
        for island in topology_of(node).get("islands", []):
            if island.get("domain"):
                members.setdefault(str(island["domain"]), []).append((node, island))
    if not members:
        return None
    made = table("NVLINK DOMAIN", "NODES", "GPUS", "CLASS", "IMEX", "MEMBERS")
    for domain, found in sorted(members.items()):
        classes = sorted(
            {
                str(gpu.get("class"))
                for node, island in found
                for gpu in topology_of(node)["gpus"]
                if gpu.get("uuid") in island.get("uuids", [])
            }
        )
        without = [str(node.get("name")) for node, island in found if not island.get("imex")]
        row(
            made,
            domain,
            len({str(node.get("name")) for node, _ in found}),
            sum(len(island.get("uuids", [])) for _, island in found),
            ", ".join(classes),
            text("ready", "green") if not without else text(f"missing on {', '.join(without)}", "yellow"),
            ", ".join(sorted({str(node.get("name")) for node, _ in found})),
        )
    return made


# --- fabric list, fabric show ---


def fabrics_grid(maps: Sequence[Json], now: float) -> Grid:
    """All mapped subnets in a line each."""
    columns = (
        Column("SUBNET"),
        Column("SWITCHES", "right"),
        Column("HOSTS", "right"),
        Column("LINKS", "right"),
        Column("MISSING", "right"),
        Column("SPEED"),
        Column("STATE"),
        Column("MAPPED"),
        Column("BY"),
        Column("PROBLEM", fold=True),
    )
    rows = []
    for record in sorted(maps, key=lambda each: str(each.get("subnet", ""))):
        nodes = record.get("nodes", [])
        rows.append(
            (
                str(record.get("subnet", "")),
                str(sum(node.get("kind") == "switch" for node in nodes)),
                str(sum(node.get("kind") == "host" for node in nodes)),
                str(len(record.get("links", []))),
                str(len(record.get("missing", []))),
                _counts(link[4] or "?" for link in record.get("links", [])) or "-",
                fabric_state(record),
                f"{age(record.get('mapped_at'), now)} ago",
                str(record.get("mapper", "")),
                _first_problem(record),
            )
        )
    return Grid(columns, rows, NO_FABRICS, {"ok": "green", "partial": "yellow", "degraded": "red"})


def _first_problem(record: Json) -> str:
    if record.get("problems"):
        return str(record["problems"][0])
    missing, errors = len(record.get("missing", [])), len(record.get("errors", []))
    found = [f"{missing} link(s) missing" if missing else "", f"errors on {errors} port(s)" if errors else ""]
    return ", ".join(filter(None, found))


def fabric_state(record: Json) -> str:
    """``ok``, ``degraded`` (something is wrong or missing) or ``partial`` (part did not answer)."""
    if record.get("partial"):
        return "partial"
    return "degraded" if record.get("problems") or record.get("missing") or record.get("errors") else "ok"


def fabric(record: Json, now: float, owners: Mapping[str, str] | None = None) -> RenderableType:
    """One subnet: problems, missing links, errors and the latest changes first, then switch by switch.

    ``owners`` is port GUID → node, by which hosts are named; a description on the fabric is only as good as who set it.
    """
    names = fabric_names(record, owners or {})
    parts: list[RenderableType] = [_fabric_head(record, now)]
    for part in (_problems(record), _missing(record, names, now), _port_errors(record, names), _changes(record, now)):
        if part is not None:
            parts += ["", part]
    return Group(*parts, "", _switches(record, names))


def owners_of(nodes: Sequence[Json]) -> dict[str, str]:
    """Port GUID → ``node mlx5_0`` from what agents published."""
    return {
        str(port["guid"]): f"{node.get('name')} {port.get('hca')}"
        for node in nodes
        for port in topology_of(node).get("rdma_ports", [])
        if port.get("guid")
    }


def fabric_names(record: Json, owners: Mapping[str, str]) -> dict[str, str]:
    """Names by node GUID: the agents' own first, then the description, then the GUID."""
    names = {}
    for node in record.get("nodes", []):
        own = next((owners[guid] for guid in (node.get("port_guids") or {}).values() if guid in owners), None)
        names[str(node.get("guid"))] = own or str(node.get("name") or node.get("guid"))
    return names


def _fabric_head(record: Json, now: float) -> Text:
    state = fabric_state(record)
    manager = f"subnet manager at LID {record['sm_lid']}" if record.get("sm_lid") else "no subnet manager"
    nodes = record.get("nodes", [])
    counts = Counter(str(node.get("kind")) for node in nodes)
    head = Text.assemble(
        "subnet ",
        (str(record.get("subnet", "")), "bold"),
        ": ",
        (state, {"ok": "green", "partial": "yellow"}.get(state, "red")),
    )
    head.append(f", {counts['switch']} switches, {counts['host']} host ports, {len(record.get('links', []))} links, {manager}")
    head.append(
        f"; mapped {age(record.get('mapped_at'), now)} ago by {record.get('mapper')} in {record.get('seconds', 0):.1f} s"
    )
    return head


def _problems(record: Json) -> RenderableType | None:
    lines = [str(problem) for problem in record.get("problems", [])]
    return text("\n".join(f"! {line}" for line in lines), "red") if lines else None


def _missing(record: Json, names: Mapping[str, str], now: float) -> RenderableType | None:
    if not record.get("missing"):
        return None
    made = table("MISSING LINK", "", "SPEED", "SINCE")
    for each in record["missing"]:
        ends = [f"{names.get(each[end], each[end])} port {each[f'{end}_port']}" for end in ("a", "b")]
        row(made, text(ends[0], "red"), text(ends[1], "red"), each.get("speed") or "-", f"{age(each.get('since'), now)} ago")
    return made


def _port_errors(record: Json, names: Mapping[str, str]) -> RenderableType | None:
    if not record.get("errors"):
        return None
    made = table("ERRORS AT", "PORT", "COUNTERS")
    for each in record["errors"]:
        counters = ", ".join(f"{name} {value}" for name, value in sorted(each.get("counters", {}).items()))
        row(made, names.get(each["guid"], each["guid"]), each["port"], text(counters, "yellow"))
    return made


_LATEST = 10


def _changes(record: Json, now: float) -> RenderableType | None:
    latest = list(record.get("changes", []))[-_LATEST:]
    if not latest:
        return None
    made = table("CHANGED", "KIND", "WHAT")
    for each in reversed(latest):
        row(made, f"{age(each.get('at'), now)} ago", each.get("kind", ""), each.get("text", ""))
    return made


def _switches(record: Json, names: Mapping[str, str]) -> RenderableType:
    """Switches with hosts first (leaves), each with its hosts and its links to other switches."""
    nodes = record.get("nodes", [])
    hosts: dict[int, list[str]] = {}
    uplinks: dict[int, Counter[tuple[str, str]]] = {}
    for a, _, b, _, speed in record.get("links", []):
        for one, other in ((a, b), (b, a)):
            if nodes[one].get("kind") != "switch":
                continue
            name = names.get(str(nodes[other].get("guid")), "?")
            if nodes[other].get("kind") == "switch":
                uplinks.setdefault(one, Counter())[name, speed] += 1
            else:
                hosts.setdefault(one, []).append(name)
    made = table("SWITCH", "LID", "HOSTS", "LINKS TO SWITCHES")
    switches = [at for at, node in enumerate(nodes) if node.get("kind") == "switch"]
    for at in sorted(switches, key=lambda at: (at not in hosts, names.get(str(nodes[at].get("guid")), ""))):
        links = uplinks.get(at, Counter())
        row(
            made,
            names.get(str(nodes[at].get("guid")), "?"),
            nodes[at].get("lid") or "-",
            ", ".join(sorted(hosts.get(at, []))) or "-",
            ", ".join(f"{count} x {speed or '?'} to {name}" for (name, speed), count in sorted(links.items())) or "-",
        )
    return made
