"""The class of a GPU: the short name that placement and people use, such as ``H100-80GB``."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"(?i)^(nvidia|tesla|quadro|geforce|grid|graphics|device|generation|sxm\d?|pcie|hbm\d?e?|nvl|\d+gb|superchip)$"
)
_SIZE = re.compile(r"(?i)(\d+)\s*GB\b")
_VGPU = re.compile(r"-\d+[A-Z]$")
_MIG = re.compile(r"(?i)\bMIG\s+(\S+)$")

#: Sizes that cards are sold as, in GiB. A driver reports up to a tenth less: ECC and firmware take their part.
_SOLD = (2, 4, 6, 8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 279, 288)


def size_name(name: str, memory_bytes: int) -> str:
    """The memory size as the product is sold: from the name when that is the GPU's own memory, else the next size sold."""
    gib = memory_bytes / 2**30
    said = _SIZE.search(name)
    # GH200 480GB names the CPU's memory: believe the name only near what the driver reports.
    if said and 0.85 * float(said[1]) <= gib <= 1.08 * float(said[1]):
        return f"{said[1]}GB"
    # 0.5 %: cards report a little less than a whole number of GiB, never noticeably more.
    fitting = [size for size in _SOLD if gib <= size * 1.005 and gib >= size * 0.88]
    return f"{fitting[0] if fitting else round(gib)}GB"


def gpu_class(name: str, memory_bytes: int) -> str:
    """The class of a GPU, a vGPU or a MIG instance.

    >>> gpu_class("NVIDIA H100 80GB HBM3", 85520809984)
    'H100-80GB'
    >>> gpu_class("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42949672960)
    'H100-MIG-3g.40gb'
    """
    part = _MIG.search(name)
    base = _MIG.sub("", name).strip()
    words = [word for word in re.split(r"[\s-]+", base) if word and not _NOISE.match(word)]
    model = "-".join(words) or "GPU"
    if part:
        return f"{model}-MIG-{part[1]}"
    if _VGPU.search(base):
        return model
    return f"{model}-{size_name(name, memory_bytes)}" if memory_bytes > 0 else model
