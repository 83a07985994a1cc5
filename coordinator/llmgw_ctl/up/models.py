"""Models at the start of ``up``: applies the wanted ones and waits until the router serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw_base.clock import Clock
from llmgw_ctl.api import ModelView
from llmgw_ctl.client import AdminClient
from llmgw_ctl.errors import CtlError, StackError, UnfulfilledError
from llmgw_ctl.up.board import Board, ModelSteps
from llmgw_ctl.up.probes import Probes
from llmgw_ctl.up.tasks import all_of
from llmgw_ctl.watch.verdict import Judge, Wish, generation_of
from llmgw_ctl.watch.wait import wait_for

ROUTED_SECONDS = 15.0
SETTLE_SECONDS = 10.0


def as_scaled(spec: dict[str, Any], earlier: ModelView | None) -> dict[str, Any]:
    """The spec with the number of replicas that the model of an earlier start was scaled to, unless that is none."""
    replicas = ((earlier or {}).get("spec") or {}).get("replicas") or {}
    return spec | {"replicas": replicas} if replicas.get("min") else spec


class Models:
    def __init__(self, client: AdminClient, probes: Probes, board: Board, clock: Clock) -> None:
        self._client = client
        self._probes = probes
        self._board = board
        self._clock = clock

    async def bring_up(self, specs: Sequence[dict[str, Any]], timeout: float, *, strict: bool) -> list[str]:
        """Applies ``specs`` and returns the models that are served, these first.

        Models of an earlier start are waited for as well, unless ``strict`` and there are wanted ones.

        Raises:
            CtlError: a model is refused; or one does not come up, if ``strict``. Otherwise that is told and the stack goes on.
        """
        known = {view.get("name", ""): view for view in await self._client.models()}
        generations = {}
        for spec in specs:
            name = str(spec["name"])
            self._board.begin(name, "applying")
            applied, _ = await self._client.apply(as_scaled(spec, known.get(name)))
            generations[name] = generation_of(applied)
        names = list(generations)
        if not (strict and names):
            names += sorted(name for name, view in known.items() if view.get("wanted", 0) > 0 and name not in generations)
        for name in names:
            self._board.begin(name, "starting")
        served = await all_of(*(self._up(name, generations.get(name, 0), timeout, strict) for name in names))
        return [name for name, ok in zip(names, served, strict=True) if ok]

    async def _up(self, name: str, generation: int, timeout: float, strict: bool) -> bool:
        try:
            await self._wait(Judge(name, Wish.SERVE, SETTLE_SECONDS, generation), timeout)
        except CtlError as error:
            self._board.failed(name, "does not come up")
            if strict:
                raise StackError(error.message, "correct the cause and start again; logs stay in the state folder") from error
            self._board.warn(error.message)
            return False
        self._board.done(name, "ready")
        return True

    async def _wait(self, judge: Judge, timeout: float) -> None:
        steps = ModelSteps(self._board)
        await wait_for(self._client, [judge], clock=self._clock, display=steps, timeout=timeout)
        name = judge.name
        until = self._clock.monotonic() + ROUTED_SECONDS
        while name not in await self._probes.routed_models():
            if self._clock.monotonic() > until:
                raise UnfulfilledError(f"model {name} is ready but the router does not list it", "see the router's log")
            await self._clock.sleep(0.05)
