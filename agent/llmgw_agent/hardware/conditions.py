"""What NVML's answers mean for the node and for each GPU. Pure: facts in, problems and quarantines out."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw_agent.hardware.problems import Code, Problem
from llmgw_agent.hardware.raw import Gpu, NvmlFacts

NODE = "node"

#: NVML's code at initialisation: problem code (None for "no GPU here, nothing wrong") and text.
_INIT: dict[int, tuple[Code, str]] = {
    4: (
        Code.NO_PERMISSION,
        "NVML refuses access (code 4): run the agent as root, or give its user access to /dev/nvidia* and /dev/nvidiactl",
    ),
    9: (
        Code.NO_DRIVER,
        "the NVIDIA driver is not loaded although its library is installed: load it with 'modprobe nvidia', or see 'dmesg' for "
        "why it failed",
    ),
    18: (
        Code.DRIVER_MISMATCH,
        "the NVIDIA kernel module and its user library are of different versions (NVML code 18), most often after an upgrade: "
        "reboot the node or reload the nvidia modules; engines that already run may go on",
    ),
    999: (
        Code.NVML_FAILED,
        "NVML cannot be initialised (code 999, unknown error): see 'dmesg | grep -i nvrm'",
    ),
}
_IN_CONTAINER = (
    "NVML cannot be initialised (code 999) inside this container: most often the container lost its devices when systemd was "
    "reloaded on the host; recreate the container"
)

_HANDLE = {
    4: (Code.NO_PERMISSION, "this GPU may not be opened (NVML code 4): give the agent access to its /dev/nvidia* file"),
    8: (Code.GPU_UNREADABLE, "the power cables of this GPU are not properly attached (NVML code 8)"),
    11: (Code.GPU_UNREADABLE, "the kernel detected an interrupt problem with this GPU (NVML code 11): see 'dmesg'"),
    15: (
        Code.GPU_LOST,
        "the GPU has fallen off the bus or is otherwise unreachable (NVML code 15): reset it or reboot the node; "
        "if it comes back, check its seating, power and the XIDs in 'dmesg'",
    ),
    16: (Code.GPU_RESET_REQUIRED, "the GPU needs a reset before it can be used again: 'nvidia-smi --gpu-reset'"),
}

#: Field 230: what the driver wants done. 0 is nothing.
RECOVERY = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain its peers",
    4: "drain and reset it",
    5: "recover IMEX",
    6: "reset its bus",
    7: "reboot the system",
}


@dataclass
class Findings:
    """Problems and notes; ``quarantine`` maps a GPU's index to why no replica may use it (the first reason stays)."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quarantine: dict[int, str] = field(default_factory=dict)

    def problem(self, code: Code, subject: str, text: str, *gpus: int) -> None:
        """Adds a problem; the GPUs named are quarantined for it."""
        self.problems.append(Problem(code, subject, text))
        for gpu in gpus:
            self.quarantine.setdefault(gpu, f"{code}: {text}")


def subject(gpu: Gpu) -> str:
    """How problems name a GPU: its UUID, else its PCI address, else its place in NVML's list."""
    return gpu.uuid or gpu.pci or f"GPU {gpu.index}"


def judge(facts: NvmlFacts, findings: Findings, *, module_version: str | None, container: str | None, pci_gpus: int) -> None:
    """Conditions of the node's driver and of each GPU on its own.

    ``module_version`` is the loaded kernel module's, ``pci_gpus`` how many NVIDIA GPUs the PCI bus shows.
    """
    _hangs(facts, findings)
    if facts.system is not None:
        if facts.system.error:
            _initialisation(facts.system.error, findings, module_version, container, pci_gpus)
        elif facts.system.count == 0:
            findings.notes.append("the NVIDIA driver works and reports no GPU")
    for gpu in facts.gpus.values():
        _gpu(gpu, findings)


def _hangs(facts: NvmlFacts, findings: Findings) -> None:
    for step in facts.hung:
        if step.index is None:
            text = f"the driver did not answer in time at '{step.step}': see 'dmesg', and reboot the node if it stays"
            findings.problem(Code.PROBE_HUNG, NODE, text, *facts.gpus)
            continue
        gpu = facts.gpus.get(step.index)
        text = (
            f"the driver did not answer in time at '{step.step}' of GPU {step.index}: a badly seated NVLink bridge or a dying "
            "GPU does this; see 'dmesg'"
        )
        findings.problem(Code.PROBE_HUNG, subject(gpu) if gpu else f"GPU {step.index}", text, step.index)
    if facts.crashed is not None:
        findings.problem(Code.PROBE_FAILED, NODE, f"the GPU probe broke off: {facts.crashed}")


def _initialisation(code: int, findings: Findings, module: str | None, container: str | None, pci_gpus: int) -> None:
    if code == 12 and not pci_gpus:
        findings.notes.append("no NVIDIA GPU and no driver")
        return
    if code == 12:
        findings.problem(
            Code.NO_LIBRARY,
            NODE,
            f"{pci_gpus} NVIDIA GPU(s) on the PCI bus, but libnvidia-ml.so.1 is not installed: install the NVIDIA driver",
        )
        return
    named, text = _INIT.get(code, (Code.NVML_FAILED, f"NVML cannot be initialised (code {code}): see 'dmesg | grep -i nvrm'"))
    if code == 999 and container is not None:
        named, text = Code.CONTAINER_LOST_DEVICES, _IN_CONTAINER
    if code == 18 and module is not None:
        text += f" (loaded kernel module: {module})"
    findings.problem(named, NODE, text)


def _gpu(gpu: Gpu, findings: Findings) -> None:
    name = subject(gpu)
    if gpu.error:
        code, text = _HANDLE.get(gpu.error, (Code.GPU_UNREADABLE, f"the GPU cannot be opened (NVML code {gpu.error})"))
        findings.problem(code, name, text, gpu.index)
        return
    if gpu.reset_required:
        findings.problem(Code.GPU_RESET_REQUIRED, name, _HANDLE[16][1], gpu.index)
    if gpu.uuid is None:
        findings.problem(
            Code.GPU_UNREADABLE, name, "the GPU does not tell its UUID, so it cannot be given to a replica", gpu.index
        )
    for call, answer in gpu.failed.items():
        findings.notes.append(f"{name}: {call} answered {answer}; the value is left out")
    mig = gpu.mig
    if mig is not None and mig.current != mig.pending:
        wanted = "on" if mig.pending else "off"
        findings.problem(
            Code.MIG_PENDING, name, f"MIG will be switched {wanted} at the next GPU reset: 'nvidia-smi --gpu-reset'", gpu.index
        )
    if mig is not None and mig.current and not mig.instances:
        findings.notes.append(
            f"{name}: MIG is on but has no instances, so nothing can run on it: create some, or switch MIG off"
        )
    for code, text in memory_conditions(gpu.remapped, gpu.retired_pending):
        findings.problem(code, name, text, gpu.index)
    if gpu.recovery_action:
        wanted = RECOVERY.get(gpu.recovery_action, f"action {gpu.recovery_action}")
        findings.problem(Code.RECOVERY_ACTION, name, f"the driver asks for recovery: {wanted}", gpu.index)


def memory_conditions(remapped: list[int] | None, retired_pending: int | None) -> list[tuple[Code, str]]:
    """What row remapping and page retirement mean. ``remapped`` is [corrected, uncorrected, pending, failure]."""
    found: list[tuple[Code, str]] = []
    if remapped is not None and remapped[3]:
        found.append((Code.ROW_REMAP_FAILED, "a memory row could not be remapped: the GPU must be replaced (RMA)"))
    elif remapped is not None and remapped[2]:
        found.append((Code.ROW_REMAP_PENDING, "a memory row waits to be remapped: drain the GPU and reset it"))
    if retired_pending:
        found.append((Code.RETIRED_PAGES_PENDING, "a memory page waits to be retired: drain the GPU and reset it"))
    return found
