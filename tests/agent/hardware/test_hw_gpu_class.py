from __future__ import annotations

import pytest

from llmgw_agent.hardware.gpu_class import gpu_class

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-80GB"),
        ("NVIDIA H100 PCIe", 79.6, "H100-80GB"),
        ("NVIDIA H100 NVL", 93.6, "H100-94GB"),
        ("NVIDIA H200", 140.4, "H200-141GB"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 80.0, "A100-80GB"),
        ("NVIDIA A800-SXM4-80GB", 79.3, "A800-80GB"),
        ("Tesla V100-SXM2-32GB", 32.0, "V100-32GB"),
        ("Tesla T4", 15.0, "T4-16GB"),
        ("NVIDIA L4", 22.5, "L4-24GB"),
        ("NVIDIA L40S", 45.0, "L40S-48GB"),
        ("NVIDIA A10", 22.5, "A10-24GB"),
        ("NVIDIA B200", 179.1, "B200-180GB"),
        ("NVIDIA GB200", 185.0, "GB200-186GB"),
        # The size in the name is the CPU's memory.
        ("NVIDIA GH200 480GB", 95.6, "GH200-96GB"),
        ("NVIDIA GeForce RTX 3090", 24.0, "RTX-3090-24GB"),
        ("NVIDIA GeForce RTX 4090", 23.99, "RTX-4090-24GB"),
        ("NVIDIA RTX 6000 Ada Generation", 47.99, "RTX-6000-Ada-48GB"),
        ("NVIDIA GeForce RTX 5070 Ti", 15.9, "RTX-5070-Ti-16GB"),
        ("NVIDIA L40S-24Q", 24.0, "L40S-24Q"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, "H100-MIG-1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.6, "A100-MIG-3g.20gb"),
        # Coherent memory on a small integrated GPU: nothing is told.
        ("NVIDIA GB10", 0, "GB10"),
        ("NVIDIA Strange 7", 200.0, "Strange-7-200GB"),
    ],
)
def test_gpu_class(name: str, gib: float, expected: str) -> None:
    assert gpu_class(name, int(gib * GIB)) == expected
