"""Any call into the driver may fail in any way: it costs that value, at most that GPU, never the look."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw_agent.hardware.topology import as_json
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml

KEYS = sorted(
    {line.partition(" ")[0].partition(".")[2] for line in machine.dgx_h100().splitlines() if line.startswith("gpu0.")}
)
#: Not supported, no permission, unknown function, internal error, library of another version; and a GPU that goes away.
CODES = (3, 4, 13, 999, 25)


def looked(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: list[str]) -> dict[str, object]:
    FakeNvml(monkeypatch, folder, machine.dgx_h100() + "".join(f"{line}\n" for line in lines))
    hardware = hardware_look.look(None)
    assert hardware.nvml.complete
    assert hardware.nvml.crashed is None
    hardware.gpu_facts()
    return as_json(hardware)


@pytest.mark.parametrize("code", [3, 999])
def test_failing_calls_one_per_gpu(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for start in range(0, len(KEYS), 8):
        lines = [f"gpu{at}.{key} = !{code}" for at, key in enumerate(KEYS[start : start + 8])]
        facts = looked(monkeypatch, tmp_path, lines)
        assert len(facts["gpus"]) == 8  # type: ignore[arg-type]  # JSON


def test_everything_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for code in CODES:
        facts = looked(monkeypatch, tmp_path, [f"gpu{gpu}.{key} = !{code}" for gpu in range(8) for key in KEYS])
        assert len(facts["gpus"]) == 8  # type: ignore[arg-type]  # JSON
        assert facts["islands"] == []


def test_gpus_that_go_away_in_the_middle_of_any_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = [key for key in KEYS if not key.startswith("link") and key not in ("nlinks", "minor", "fi.147")]
    for start in range(0, len(read), 7):
        keys = read[start : start + 7]
        FakeNvml(monkeypatch, tmp_path, machine.dgx_h100() + "".join(f"gpu{at}.{key} = !15\n" for at, key in enumerate(keys)))
        hardware = hardware_look.look(None)
        assert hardware.nvml.complete
        assert [gpu.raw.index for gpu in hardware.gpus if gpu.raw.error == 0][-1] == 7
