"""``python -m bench``: all benchmarks; writes bench/RESULTS.md. One alone: ``python -m bench.router --help``."""

import sys

from bench import others
from bench.router import run

if __name__ == "__main__":
    sys.exit(max(run.main(), others.main()))
