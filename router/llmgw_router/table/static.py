"""Endpoints named on the command line or in the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_base.config import ConfigError
from llmgw_router.errors import TableError
from llmgw_router.table.spec import EndpointSpec, parse_endpoint


def parse_all(texts: Sequence[str]) -> list[EndpointSpec]:
    """Reads them all.

    Raises:
        ConfigError: one is malformed, or an id stands twice.
    """
    specs: list[EndpointSpec] = []
    for text in texts:
        try:
            spec = parse_endpoint(text)
        except TableError as error:
            raise ConfigError(f"endpoints: {error}") from error
        if any(each.id == spec.id for each in specs):
            raise ConfigError(f"endpoints: the id {spec.id!r} stands twice; give each endpoint an id of its own")
        specs.append(spec)
    return specs
