"""The benchmarks besides the router's: each prints its figures; together they are the second half of bench/RESULTS.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
HEADING = "# Other benchmarks"
OTHERS = {
    "planner": "The leader's planning pass: 1,000 nodes with 8 GPUs each, 500 models, 4,000 replicas",
    "hardware": "Detection, telemetry and fabric maps on simulated hardware",
    "agent": "Supervision: adoption after the agent's end, an engine's death, what 16 replicas cost",
    "weights": "Fetching weights from a local server, hashing included, against curl",
}


def main() -> int:
    """Runs them one after the other and writes what they print; returns how many failed or missed a goal."""
    parts = [HEADING, f"Load average of the machine before: {os.getloadavg()[0]:.1f}. Again: `python -m bench.others`"]
    missed = 0
    for name, what in OTHERS.items():
        print(f"bench.{name}", file=sys.stderr)
        command = [sys.executable, "-m", f"bench.{name}"]
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False, timeout=900)
        missed += done.returncode != 0
        print(done.stdout, done.stderr, file=sys.stderr)
        parts += [f"## {what}", f"`python -m bench.{name}`", f"```text\n{done.stdout.strip()}\n```"]
    RESULTS.write_text("\n\n".join([router_half(RESULTS), *parts]) + "\n")
    return missed


def router_half(path: Path) -> str:
    """What stands before the other benchmarks."""
    return path.read_text().partition(HEADING)[0].strip() if path.exists() else ""


def other_half(path: Path) -> str:
    """The other benchmarks with their heading; empty when there are none."""
    _, found, rest = path.read_text().partition(HEADING) if path.exists() else ("", "", "")
    return found + rest


if __name__ == "__main__":
    sys.exit(main())
