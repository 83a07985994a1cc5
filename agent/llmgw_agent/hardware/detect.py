"""One look at the host's hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmgw_agent.hardware import conditions, islands, nvlink_fabric, nvlink_lanes
from llmgw_agent.hardware.conditions import Findings
from llmgw_agent.hardware.gpu_class import gpu_class
from llmgw_agent.hardware.nvml_look import look
from llmgw_agent.hardware.problems import Problem, unique
from llmgw_agent.hardware.raw import Gpu, NvmlFacts
from llmgw_proto.records.node import GpuFacts


class Hardware:
    """What was found; everything is derived once, from plain facts."""

    def __init__(self, nvml: NvmlFacts) -> None:
        self.nvml = nvml
        self._findings = Findings()
        conditions.judge(nvml, self._findings, module_version=None, container=None, pci_gpus=0)
        members = nvlink_fabric.judge(nvml.gpus, nvml.links, self._findings)
        self._nvlink = islands.view(nvml.gpus, nvml.links, nvml.pairs, members, lambda pci: False, self._findings)
        nvlink_lanes.judge(nvml.gpus, nvml.links, self._nvlink, self._findings)

    @property
    def problems(self) -> list[Problem]:
        """What is wrong, for people and for dashboards."""
        return unique(self._findings.problems)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and no problem."""
        return self._findings.notes

    def gpu_facts(self) -> list[GpuFacts]:
        """What replicas can be placed on: whole GPUs, and the MIG instances of those that are cut up."""
        facts: list[GpuFacts] = []
        for index, gpu in sorted(self.nvml.gpus.items()):
            if gpu.uuid is None:
                continue
            if gpu.mig is not None and gpu.mig.current:
                facts += self._instances(index, gpu)
                continue
            facts.append(
                GpuFacts(
                    uuid=gpu.uuid,
                    name=gpu.name or "",
                    gpu_class=gpu_class(gpu.name or "", gpu.memory_total or 0),
                    memory_bytes=gpu.memory_total or 0,
                    pci=gpu.pci or "",
                    quarantine=self._findings.quarantine.get(index),
                )
            )
        return facts

    def _instances(self, index: int, gpu: Gpu) -> list[GpuFacts]:
        assert gpu.mig is not None
        return [
            GpuFacts(
                uuid=part.uuid,
                name=part.name or "",
                gpu_class=gpu_class(part.name or "", part.memory_total or 0),
                memory_bytes=part.memory_total or 0,
                pci=gpu.pci or "",
                quarantine=self._findings.quarantine.get(index),
            )
            for part in gpu.mig.instances
            if part.uuid is not None
        ]

    def topology(self) -> dict[str, Any]:
        """JSON for ``InventoryRecord.topology``."""
        uuids = {index: gpu.uuid for index, gpu in self.nvml.gpus.items()}
        return {
            "islands": [
                {"uuids": [uuids[gpu] for gpu in island.gpus], "all_to_all": island.all_to_all, "domain": island.domain}
                for island in self._nvlink.islands
            ],
            "tp_groups": [[uuids[gpu] for gpu in group] for island in self._nvlink.islands for group in island.groups],
            "problems": [problem.as_json() for problem in self.problems],
        }


async def detect(sysfs_root: Path = Path("/sys"), deadline: float = 5.0) -> Hardware:
    """Looks at the host once, within ``deadline`` seconds. Never raises for what the hardware does."""
    return Hardware(await look(deadline))
