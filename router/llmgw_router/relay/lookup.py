"""From a model's name and a route to the replicas that can serve it. Pure."""

from __future__ import annotations

from llmgw_router.api.routes import Route
from llmgw_router.errors import ApiError
from llmgw_router.table.directory import Group, Table


def find_group(table: Table, name: str, route: Route) -> Group:
    """The replicas that serve ``route`` for the model.

    Raises:
        ApiError: 404 when there is no such model, 503 when it has no replica, 400 when none of its replicas can do this.
    """
    group = table.group(name, route.capability)
    if group is not None:
        return group
    if name not in table.models:
        if name in table.declared:
            raise no_replica(name)
        raise ApiError(
            404,
            "model_not_found",
            f"The model {name[:200]!r} does not exist here; GET /v1/models lists those that do.",
            param="model",
        )
    raise ApiError(
        400,
        "unsupported_by_model",
        f"No replica of {name!r} can serve {route.path}: its engines do not offer {route.capability!r}.",
        param="model",
    )


def no_replica(name: str) -> ApiError:
    return ApiError(503, "no_replica", f"No replica of {name!r} is ready; try again shortly.", retry_after=5)
