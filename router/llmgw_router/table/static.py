"""Endpoints named on the command line or in the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_base.config import ConfigError
from llmgw_router.config import EndpointSection
from llmgw_router.errors import TableError
from llmgw_router.table.spec import EndpointSpec, parse_endpoint, parse_url


def _long_form(section: EndpointSection) -> EndpointSpec:
    address, key = parse_url(section.url)
    return EndpointSpec(
        section.id,
        address,
        tuple(section.models),
        key,
        served_name=section.served_name,
        capabilities=frozenset(section.capabilities) if section.capabilities is not None else None,
        weight=section.weight,
        max_concurrency=section.max_concurrency,
    )


def parse_all(endpoints: Sequence[str | EndpointSection]) -> list[EndpointSpec]:
    """Reads them all.

    Raises:
        ConfigError: one is malformed, or an id stands twice.
    """
    specs: list[EndpointSpec] = []
    for each in endpoints:
        try:
            spec = parse_endpoint(each) if isinstance(each, str) else _long_form(each)
        except TableError as error:
            raise ConfigError(f"endpoints: {error}") from error
        if any(other.id == spec.id for other in specs):
            raise ConfigError(f"endpoints: the id {spec.id!r} stands twice; give each endpoint an id of its own")
        specs.append(spec)
    return specs
