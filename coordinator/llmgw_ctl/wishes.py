"""Carries a wish to the coordinator and waits for it; used by the model commands and by ``up``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from llmgw_ctl.api import ModelView
from llmgw_ctl.client import AdminClient
from llmgw_ctl.errors import BadInputError
from llmgw_ctl.humanize import parse_duration
from llmgw_ctl.watch.display import display_for
from llmgw_ctl.watch.verdict import Judge, Wish, generation_of
from llmgw_ctl.watch.wait import wait_for

if TYPE_CHECKING:
    from llmgw_ctl.session import Session


@dataclass(frozen=True, slots=True)
class Patience:
    """Whether and how long to wait, in seconds."""

    wait: bool = True
    timeout: float = 600.0
    settle: float = 10.0

    @classmethod
    def parse(cls, timeout: str, settle: str, *, wait: bool) -> Self:
        """Raises BadInputError when one of the two is not a duration."""
        return cls(wait, parse_duration(timeout), parse_duration(settle))


@dataclass(frozen=True, slots=True)
class Applied:
    name: str
    what: str
    view: ModelView


async def apply_specs(
    session: Session, client: AdminClient, specs: Sequence[dict[str, Any]], patience: Patience
) -> list[Applied]:
    """Applies all, then waits for all. Raises what the client and the wait raise."""
    before = {view.get("name", ""): generation_of(view) for view in await client.models()}
    applied = []
    for number, spec in enumerate(specs):
        name = str(spec["name"])
        try:
            view, created = await client.apply(spec)
        except BadInputError as error:
            done = f" ({number} of {len(specs)} models were applied before it)" if number else ""
            raise BadInputError(f"model {name} was refused: {error.message}{done}", error.remedy) from error
        unchanged = not created and before.get(name) == generation_of(view)
        applied.append(Applied(name, "created" if created else "unchanged" if unchanged else "changed", view))
    if not patience.wait:
        return applied
    judges = [Judge(each.name, Wish.SERVE, patience.settle, generation_of(each.view)) for each in applied]
    views = await _wait(session, client, judges, patience)
    return [Applied(each.name, each.what, views[each.name] or each.view) for each in applied]


async def scale_model(session: Session, client: AdminClient, name: str, replicas: int, patience: Patience) -> ModelView:
    view = await client.scale(name, replicas)
    if not patience.wait:
        return view
    judge = Judge(name, Wish.SERVE, patience.settle, generation_of(view))
    return (await _wait(session, client, [judge], patience))[name] or view


async def remove_model(session: Session, client: AdminClient, name: str, patience: Patience) -> list[str]:
    """Returns the ids of the replicas that it had."""
    replicas = await client.remove(name)
    if patience.wait:
        await _wait(session, client, [Judge(name, Wish.REMOVE)], patience)
    return replicas


async def _wait(
    session: Session, client: AdminClient, judges: Sequence[Judge], patience: Patience
) -> dict[str, ModelView | None]:
    display = display_for(session.terminal)
    try:
        return await wait_for(client, judges, clock=session.clock, display=display, timeout=patience.timeout)
    except asyncio.CancelledError:
        session.terminal.note("no longer waiting; the wish stays, and the cluster goes on working on it")
        raise
