"""These tests install a real vLLM, which takes minutes and gigabytes: they run when they are named, see ``make test-vllm``."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [(config.invocation_params.dir / each.partition("::")[0]).resolve() for each in config.args]
    return None if any(each == HERE or HERE in each.parents for each in named) else True
