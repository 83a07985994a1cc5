"""Turns the numbers into bench/RESULTS.md."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from bench.others import other_half
from bench.router.load import Latency, Round

MB = 1_000_000
KINDS = {
    "nonstream": "non-stream chat",
    "burst": "burst stream, 65 events in one write of the engine",
    "scattered": "burst stream, 65 events in 65 writes of the engine back to back",
    "paced": "stream of 65 events paced 10 ms",
}
# kind: (at most this many times nginx, at most this share of the best Rust router)
GOALS = {"nonstream": (2.5, 0.4), "burst": (1.5, 0.4), "paced": (1.5, 0.45)}
OURS, LIMIT = "llmgw", "nginx"
ALL_OURS = (OURS, "llmgw-distro")


@dataclass
class Results:
    versions: dict[str, str]
    rounds: dict[str, dict[str, list[Round]]] = field(default_factory=dict)  # kind → target → rounds
    rate: float = 0.0
    latencies: dict[str, list[Latency]] = field(default_factory=dict)  # target or "direct" → rounds
    stream_memory: dict[str, list[int]] = field(default_factory=dict)  # target → bytes per process, largest first
    streams: int = 0
    long_run: list[tuple[int, int]] = field(default_factory=list)  # (requests so far, resident bytes of the worker)
    command: str = ""
    nice: int = 0
    """Of the light loads, when other work was going on on the machine."""
    load_average: float = 0.0
    """Of the machine before the run: what else was going on."""

    def cpu(self, kind: str, name: str) -> float:
        return statistics.median(item.cpu_us for item in self.rounds[kind][name])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *[f"| {' | '.join(row)} |" for row in rows], ""]


def judged(value: float, goal: float) -> str:
    return f"{value:.2f} (goal ≤ {goal}: {'met' if value <= goal else 'missed'})"


def render(results: Results) -> str:
    lines = ["# Router benchmark", ""]
    lines += [
        f"Measured on {os.cpu_count()} cores; load generator, proxy and mock engines on one machine, all targets interleaved",
        "in one run. CPU is the proxy's own time on CPU (`/proc/PID/task/*/schedstat`, all its processes and threads) over",
        "completed requests; medians of the rounds, lowest and highest in brackets. llmgw runs one worker with key check,",
        "accounting, metrics and the least-loaded policy over two engines; the others run without keys and with round robin.",
        "Machines are noisy: read ratios, not absolute values.",
        f"Load average of the machine before the run: {results.load_average:.1f} (0 would be quiet)."
        + (f" Paced streams, latency and memory ran ahead of that other work (nice {results.nice})." if results.nice else ""),
        "",
        f"Again: `{results.command}`",
        "",
        "Versions: " + ", ".join(f"{name} {text}" for name, text in results.versions.items()),
        f"(uvloop {version('uvloop')}, httptools {version('httptools')}; llmgw-distro: the distribution's own Python).",
        "",
        "What the misses come from: [PROFILES.md](PROFILES.md).",
        "",
    ]
    for kind in results.rounds:
        lines += cpu_section(results, kind)
    if results.latencies:
        lines += latency_section(results)
    if results.stream_memory:
        lines += memory_section(results)
    if results.long_run:
        lines += long_run_section(results)
    return "\n".join(lines)


def cpu_section(results: Results, kind: str) -> list[str]:
    names = results.rounds[kind]
    rivals = [name for name in names if name not in (*ALL_OURS, LIMIT)]
    rows = []
    for name, rounds in names.items():
        values = [item.cpu_us for item in rounds]
        speed = statistics.median(item.per_second for item in rounds)
        against = f"{results.cpu(kind, name) / results.cpu(kind, LIMIT):.2f}" if LIMIT in names else "–"
        spread = f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"
        rows.append([name, spread, against, f"{speed:.0f}"])
    lines = [f"## CPU, {KINDS[kind]}", "", *table(["proxy", "CPU µs per request", "× nginx", "requests/s (closed loop)"], rows)]
    if LIMIT not in names or kind not in GOALS:
        return lines
    to_limit, to_rival = GOALS[kind]
    for name in (name for name in ALL_OURS if name in names):
        ours = results.cpu(kind, name)
        lines.append(f"- {name} against nginx: {judged(ours / results.cpu(kind, LIMIT), to_limit)}")
        if rivals:
            best = min(rivals, key=lambda rival: results.cpu(kind, rival))
            lines.append(f"- {name} against the best Rust router ({best}): {judged(ours / results.cpu(kind, best), to_rival)}")
    return [*lines, ""]


def latency_section(results: Results) -> list[str]:
    def middle(name: str, what: str) -> float:
        return float(statistics.median(getattr(item, what) for item in results.latencies[name]))

    rows = []
    for name, rounds in results.latencies.items():
        added = "–" if name == "direct" else f"{middle(name, 'p99') - middle('direct', 'p99'):.0f}"
        bad = sum(item.errors + item.late for item in rounds)
        rows.append([name, *[f"{middle(name, what):.0f}" for what in ("p50", "p90", "p99", "p999")], added, str(bad)])
    head = ["proxy", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "added p99 µs", "errors or not started"]
    lines = [f"## Latency at half load: {results.rate:.0f} non-stream requests/s, open loop", ""]
    lines += ["Half of what llmgw reached above, the same for all; a proxy whose own maximum is lower shows its queue.", ""]
    lines += table(head, rows)
    if OURS in results.latencies and LIMIT in results.latencies:
        ours, limit = (middle(name, "p99") - middle("direct", "p99") for name in (OURS, LIMIT))
        lines += [
            f"- added p99 against nginx: {judged(ours / limit, 2)}" if limit > 0 else "- nginx added nothing measurable",
            "",
        ]
    return lines


def memory_section(results: Results) -> list[str]:
    rows = [
        [name, f"{max(sizes) / MB:.1f}", f"{sum(sizes) / MB:.1f}", str(len(sizes))]
        for name, sizes in results.stream_memory.items()
    ]
    head = ["proxy", "largest process MB", "all processes MB", "processes"]
    lines = [f"## Memory with {results.streams} open streams", "", *table(head, rows)]
    for name in (name for name in ALL_OURS if name in results.stream_memory):
        lines.append(f"- {name}, MB per worker: {judged(max(results.stream_memory[name]) / MB, 80)}")
    return [*lines, ""]


def long_run_section(results: Results) -> list[str]:
    step = max(1, len(results.long_run) // 10)
    kept = [*results.long_run[:-1:step], results.long_run[-1]]
    rows = [[f"{count:,}", f"{size / MB:.1f}"] for count, size in kept]
    first = next((size for count, size in results.long_run if count >= 100_000), results.long_run[0][1])
    growth = (results.long_run[-1][1] - first) / MB
    return [
        "## Memory of the llmgw worker over many requests",
        "",
        *table(["requests", "resident MB"], rows),
        f"- growth after the first 100,000 requests: {growth:+.1f} MB",
        "",
    ]


def write(results: Results, path: Path) -> None:
    """Replaces the router's half of the file and leaves the other benchmarks' as it is."""
    others = other_half(path)
    path.write_text(render(results).rstrip() + "\n" + (f"\n{others.rstrip()}\n" if others else ""))
