"""Profiles of machines for the fake NVML. ``uuid(3)`` is the UUID of GPU 3 in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HIDDEN = "FFFFFFFF:FF:FF.0"
NVSWITCH = "00000000:05:00.0"


@dataclass(frozen=True)
class Model:
    """What all cards of a model share. Memory in bytes, power in W as default, least, most."""

    name: str
    memory: int
    cc: str
    arch: int
    power: tuple[int, int, int]
    ecc: bool = True
    mig: bool = False


V100 = Model("Tesla V100-SXM2-32GB", 34_359_738_368, "7.0", 5, (300, 150, 300))
A100 = Model("NVIDIA A100-SXM4-40GB", 42_949_672_960, "8.0", 7, (400, 100, 400), mig=True)
A100_PCIE = Model("NVIDIA A100 80GB PCIe", 85_899_345_920, "8.0", 7, (300, 150, 300), mig=True)
H100 = Model("NVIDIA H100 80GB HBM3", 85_520_809_984, "9.0", 9, (700, 200, 700), mig=True)
L40S = Model("NVIDIA L40S", 48_305_799_168, "8.9", 8, (350, 100, 350))
RTX3090 = Model("NVIDIA GeForce RTX 3090", 25_769_803_776, "8.6", 7, (350, 100, 350), ecc=False)
RTX3080 = Model("NVIDIA GeForce RTX 3080", 10_737_418_240, "8.6", 7, (320, 100, 320), ecc=False)
GB200 = Model("NVIDIA GB200", 198_642_237_440, "10.0", 10, (1200, 200, 1200))

#: Where the GPUs of an eight-GPU box sit.
BOX = tuple(f"00000000:{bus}:00.0" for bus in ("1B", "43", "52", "61", "9D", "C3", "D1", "DF"))


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-4444{index:08x}"


def system(count: int, driver: str = "580.95.05", cuda: int = 13000) -> list[str]:
    return [f"sys.driver = {driver}", f"sys.nvml = 13.{driver}", f"sys.cuda = {cuda}", f"sys.count = {count}"]


def card(index: int, model: Model, pci: str) -> list[str]:
    default, least, most = (watts * 1000 for watts in model.power)
    keys = {
        "name": model.name,
        "uuid": uuid(index),
        "pci": pci,
        "minor": index,
        "mem": f"{model.memory},0",
        "cc": model.cc,
        "arch": model.arch,
        "temp": 35 + index,
        "util": "0,0",
        "power": 70_000,
        "reasons": 1,
        "clock1": 345,
        "clock2": 1593,
        "maxclock1": 1980,
        "maxclock2": 2619,
        "plimit": default,
        "plimit.default": default,
        "plimit.enforced": default,
        "plimit.range": f"{least},{most}",
        "persistence": 1,
        "pcie.gen": 1,
        "pcie.width": 16,
        "pcie.maxgen": 5,
        "pcie.maxwidth": 16,
    }
    if model.ecc:
        keys |= {"ecc": "1,1", "eccerr.0.0": 0, "eccerr.1.0": 0, "serial": f"1650000{index}"}
        if int(model.cc.split(".")[0]) >= 8:
            keys["remapped"] = "0,0,0,0"
        else:
            keys |= {"retired0": 0, "retired1": 0}
    if model.mig:
        keys |= {"migmode": "0,0", "maxmig": 7}
    return [f"gpu{index}.{key} = {value}" for key, value in keys.items()]


def links(index: int, version: int, remotes: Sequence[tuple[int, str]], dead: Iterable[int] = ()) -> list[str]:
    """NVLinks of one GPU; a remote is (type, PCI address), type 0 a GPU and 2 a switch."""
    lines = [f"gpu{index}.nlinks = {len(remotes)}"]
    for at, (kind, pci) in enumerate(remotes):
        prefix = f"gpu{index}.link{at}"
        lines.append(f"{prefix}.version = {version}")
        if at in dead:
            lines.append(f"{prefix}.state = 0")
        else:
            lines += [f"{prefix}.state = 1", f"{prefix}.rtype = {kind}", f"{prefix}.rpci = {pci}"]
    return lines


def peers(default: str = "0", topo: int = 50) -> list[str]:
    """Peer access of all pairs: ``default`` is the NVLink status, 0 for yes and 5 for no."""
    return [f"pair.default.topo = {topo}", "pair.default.p2p0 = 0", f"pair.default.p2p2 = {default}"]


def near(pairs: Iterable[tuple[int, int]], topo: int) -> list[str]:
    return [f"pair.{a}.{b}.topo = {topo}" for a, b in pairs]


def text(*parts: Iterable[str]) -> str:
    return "".join(f"{line}\n" for part in parts for line in part)


_HALVES = [(a, b) for half in (range(4), range(4, 8)) for a in half for b in half if a < b]


def dgx1_v100() -> str:
    """The hybrid cube mesh: two quads, each fully joined, and one link pair between opposite corners."""
    pci = [f"00000000:{bus}:00.0" for bus in ("06", "07", "0A", "0B", "85", "86", "89", "8A")]
    weights = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 1}
    weights |= {(a + 4, b + 4): weight for (a, b), weight in weights.items()}
    weights |= {(a, a + 4): 2 for a in range(4)}
    lines: list[str] = []
    for index in range(8):
        remotes = [
            (0, pci[b if a == index else a]) for (a, b), weight in weights.items() if index in (a, b) for _ in range(weight)
        ]
        lines += card(index, V100, pci[index]) + links(index, 2, remotes)
    pairs = [f"pair.{a}.{b}.p2p2 = {0 if (a, b) in weights else 5}" for a in range(8) for b in range(a + 1, 8)]
    return text(system(8, "535.183.01", 12020), lines, peers(), pairs)


def dgx_a100() -> str:
    lines = [line for index, pci in enumerate(BOX) for line in card(index, A100, pci) + links(index, 4, [(2, NVSWITCH)] * 12)]
    return text(system(8), lines, peers(), near(_HALVES, 40))


def dgx_h100(state: int = 3, status: int = 0, remote: str = NVSWITCH, dead: Iterable[int] = ()) -> str:
    """``dead``: inactive links of GPU 5."""
    lines: list[str] = []
    for index, pci in enumerate(BOX):
        lines += card(index, H100, pci)
        lines += links(index, 6, [(2, remote)] * 18, dead if index == 5 else ())
        lines += [f"gpu{index}.fi.147 = 18", f"gpu{index}.module = {index + 1}"]
        lines += [f"gpu{index}.fabric.state = {state}", f"gpu{index}.fabric.status = {status}"]
        lines += [f"gpu{index}.fabric.uuid = 00000000-0000-0000-0000-000000000000", f"gpu{index}.fabric.clique = 0"]
    return text(system(8), lines, peers(), near(_HALVES, 40))


def a100_pcie_bridged() -> str:
    """Four cards, each pair on three bridges."""
    pci = [f"00000000:{bus}:00.0" for bus in ("17", "65", "CA", "E3")]
    lines = [
        line for index in range(4) for line in card(index, A100_PCIE, pci[index]) + links(index, 4, [(0, pci[index ^ 1])] * 12)
    ]
    return text(system(4), lines, peers("5"), ["pair.0.1.p2p2 = 0", "pair.2.3.p2p2 = 0"], near([(0, 1), (2, 3)], 40))


def rtx3090_pair(dead: Iterable[int] = ()) -> str:
    """Two cards on a bridge of four links; ``dead`` links are inactive on both."""
    pci = ["00000000:01:00.0", "00000000:21:00.0"]
    dead = list(dead)
    lines = [
        line
        for index in range(2)
        for line in card(index, RTX3090, pci[index]) + links(index, 5, [(0, pci[index ^ 1])] * 4, dead)
    ]
    return text(system(2), lines, ["pair.default.topo = 30"], [] if len(dead) == 4 else ["pair.default.p2p2 = 0"])


def l40s(count: int = 8) -> str:
    pci = [f"00000000:{bus}:00.0" for bus in ("0E", "0F", "1F", "20", "87", "88", "98", "99")]
    lines = [line for index in range(count) for line in card(index, L40S, pci[index])]
    halves = [(a, b) for a in range(count) for b in range(a + 1, count) if a * 2 // count == b * 2 // count]
    return text(system(count), lines, peers("5"), near(halves, 40))


def h100_mig() -> str:
    """One GPU in two instances, with a hole between their indices."""
    instances = [(0, "3g.40gb", 1, 42_949_672_960), (2, "2g.20gb", 5, 21_474_836_480)]
    lines = [line for line in card(0, H100, BOX[0]) if ".util" not in line and ".remapped" not in line]
    lines += ["gpu0.migmode = 1,1"]
    for at, profile, instance, memory in instances:
        lines += [
            f"gpu0.mig{at}.uuid = MIG-aaaaaaaa-0000-0000-0000-00000000000{at}",
            f"gpu0.mig{at}.name = {H100.name} MIG {profile}",
            f"gpu0.mig{at}.gi = {instance}",
            f"gpu0.mig{at}.ci = 0",
            f"gpu0.mig{at}.mem = {memory},0",
        ]
    return text(system(1), lines)


def gb200_tray(
    state: int = 3, status: int = 0, summary: int = 1, mask: str = "0xaa", clique: int = 32766, tray: int = 7
) -> str:
    pci = [f"00000{domain}:01:00.0" for domain in ("008", "009", "018", "019")]
    cluster = "5d9a6b1c-0f2e-4a77-9c1d-3b5e7f901234" if state == 3 and status == 0 else "00000000-0000-0000-0000-000000000000"
    lines: list[str] = []
    for index in range(4):
        lines += card(index, GB200, pci[index]) + links(index, 7, [(2, HIDDEN)] * 18)
        lines += [f"gpu{index}.numa = {(2, 10, 18, 26)[index]}"]
        lines += [f"gpu{index}.cpuaffinity = {('0-71', '0-71', '72-143', '72-143')[index]}"]
        lines += [f"gpu{index}.memaffinity = {'0,3-9,11-17' if index < 2 else '1,19-25,27-33'}"]
        lines += [f"gpu{index}.fabric.state = {state}", f"gpu{index}.fabric.status = {status}"]
        lines += [f"gpu{index}.fabric.uuid = {cluster}", f"gpu{index}.fabric.clique = {clique if cluster[0] == '5' else 0}"]
        lines += [f"gpu{index}.fabric.summary = {summary}", f"gpu{index}.fabric.mask = {mask}"]
        lines += [f"gpu{index}.platform.slot = 12", f"gpu{index}.platform.tray = {tray}"]
        lines += [f"gpu{index}.platform.serial = 1820124180012"]
    return text(system(4), lines, peers(), near([(0, 1), (2, 3)], 40))


def vgpu() -> str:
    """A guest with one vGPU: most of what a card tells is not supported here."""
    keep = ("name", "uuid", "pci", "minor", "mem", "cc", "arch", "util")
    lines = [line for line in card(0, L40S, "00000000:06:00.0") if line.split(" ")[0].split(".", 1)[1] in keep]
    return text(system(1), lines, ["gpu0.name = NVIDIA L40S-24Q", "gpu0.mem = 25769803776,0", "gpu0.virt = 2"])


def mixed() -> str:
    return text(
        system(3),
        card(0, RTX3090, "00000000:01:00.0"),
        card(1, RTX3080, "00000000:21:00.0"),
        card(2, RTX3090, "00000000:41:00.0"),
        peers("5"),
    )


def lost(index: int = 3) -> str:
    return l40s() + f"gpu{index}.lost = 1\n"


def failing(code: int) -> str:
    """Initialisation answers ``code``: 9 no driver, 18 mismatch, 4 no permission, 999 unknown."""
    return f"sys.init = !{code}\n"
