"""Inactive NVLinks: a dead lane, a badly seated bridge, or simply no bridge. Pure.

How many links a model has is never compared with a table (an A800 has 8 of an A100's 12): a GPU is compared with its
siblings, and a bridged pair with the links that its cards have.
"""

from __future__ import annotations

from llmgw_agent.hardware.conditions import Findings, subject
from llmgw_agent.hardware.islands import NvlinkView
from llmgw_agent.hardware.problems import Code
from llmgw_agent.hardware.raw import Gpu, Links


def judge(gpus: dict[int, Gpu], links: dict[int, Links], found: NvlinkView, findings: Findings) -> None:
    """Reports GPUs with fewer live links than they should have."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, of in sorted(links.items()):
        gpu = gpus.get(index)
        if gpu is not None and not gpu.error and of.links:
            groups.setdefault((gpu.name, gpu.memory_total), []).append(index)
    for group in groups.values():
        if found.switch_links.keys() & set(group) or any(len(_peers(index, found)) > 1 for index in group):
            _baseboard(group, gpus, links, findings)
        else:
            _bridges(group, gpus, links, findings)


def active(links: Links) -> int:
    return sum(link.up for link in links.links)


def _peers(index: int, found: NvlinkView) -> set[int]:
    return {edge[0] if edge[1] == index else edge[1] for edge in found.direct if index in edge}


def _baseboard(group: list[int], gpus: dict[int, Gpu], links: dict[int, Links], findings: Findings) -> None:
    most = max(active(links[index]) for index in group)
    for index in group:
        have = active(links[index])
        if have < most:
            dead = ", ".join(str(link.link) for link in links[index].links if not link.up)
            findings.problem(
                Code.NVLINK_DEGRADED,
                subject(gpus[index]),
                f"{have} of {most} NVLinks are active" + (f" (inactive: {dead})" if dead else "") + "; its siblings have all: "
                "reset the GPU; if the lanes stay inactive, the baseboard needs service",
            )


def _bridges(group: list[int], gpus: dict[int, Gpu], links: dict[int, Links], findings: Findings) -> None:
    for index in group:
        have, present = active(links[index]), len(links[index].links)
        if have == 0:
            findings.notes.append(f"{subject(gpus[index])}: NVLink present but no bridge connected")
        elif have < present:
            findings.problem(
                Code.NVLINK_DEGRADED,
                subject(gpus[index]),
                f"{have} of {present} NVLinks are active: the NVLink bridge has bad contact; reseat it",
            )
