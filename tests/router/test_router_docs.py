"""docs/router.md says what the code does."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path

from llmgw_base.config import Section
from llmgw_router import policies
from llmgw_router.account.metrics import Metrics
from llmgw_router.api.routes import RELAYED
from llmgw_router.config import RouterConfig

TEXT = (Path(__file__).parents[2] / "docs" / "router.md").read_text()


def sections(cls: type[Section], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key path and its default."""
    for name, field in cls.model_fields.items():
        kinds = [each for each in (field.annotation, *typing.get_args(field.annotation)) if isinstance(each, type)]
        inner = next((each for each in kinds if issubclass(each, Section)), None)
        if inner is not None:
            yield from sections(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, None if field.is_required() else field.get_default(call_default_factory=True)


def test_every_key_is_explained_with_its_default() -> None:
    rows = {row.split("|")[1].strip().strip("`"): row for row in TEXT.splitlines() if row.startswith("| `")}
    for key, default in sections(RouterConfig):
        assert f"`{key}`" in TEXT, f"{key} is not in docs/router.md"
        if key in rows and isinstance(default, int | float) and not isinstance(default, bool):
            assert f" {default:g} " in rows[key] or f" {default} " in rows[key], (
                f"docs/router.md tells another default of {key}"
            )


def test_every_policy_path_and_metric_is_named() -> None:
    for name in [f"`{each}`" for each in policies.names()] + [route.path for route in RELAYED.values()]:
        assert name in TEXT, name
    for family in Metrics().families():
        assert f"`{family.name}{'_total' if family.kind == 'counter' else ''}`" in TEXT, family.name
