"""The wait itself: asks again, shows, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from llmgw_ctl.api import ModelView, ReplicaView
from llmgw_ctl.errors import UnfulfilledError, UnreachableError
from llmgw_ctl.watch.verdict import Judge, Outcome, Verdict, Wish
from llmgw_ctl.watch.wait import UNREACHABLE_SECONDS, wait_for
from llmgw_testing.clock import FakeClock


class Script:
    """Answers with one list of views after the other; the last stays. An exception is raised."""

    def __init__(self, *answers: Sequence[ModelView] | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def models(self) -> list[ModelView]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


class Shown:
    def __init__(self) -> None:
        self.verdicts: list[dict[str, Verdict]] = []
        self.open = False

    def __enter__(self) -> Shown:
        self.open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False

    def show(self, verdicts: dict[str, Verdict], elapsed: float) -> None:
        assert self.open
        self.verdicts.append(verdicts)


def model(name: str, state: str, ready: int = 0, reason: str = "") -> ModelView:
    replicas = [ReplicaView(id=f"{name}-1", state="Ready", url="http://e", generation=1)] * ready
    return ModelView(name=name, state=state, ready=ready, wanted=1, reason=reason, replicas=replicas, spec={"generation": 1})


def wait(client: Script, *names: str, wish: Wish = Wish.SERVE, timeout: float = 60) -> tuple[dict[str, Any], Shown, float]:
    async def run() -> tuple[dict[str, Any], Shown, float]:
        clock, shown = FakeClock(), Shown()
        started = clock.monotonic()
        judges = [Judge(name, wish) for name in names]
        task = asyncio.create_task(wait_for(client, judges, clock=clock, display=shown, timeout=timeout))
        while not task.done():
            await clock.advance(0.2)
        assert not shown.open
        return await task, shown, clock.monotonic() - started

    return asyncio.run(run())


def test_returns_the_last_views_and_shows_every_look() -> None:
    client = Script([model("a", "Progressing")], [model("a", "Progressing")], [model("a", "Ready", 1)])
    views, shown, _ = wait(client, "a")
    assert views["a"]["state"] == "Ready"
    assert [each["a"].outcome for each in shown.verdicts][-1] is Outcome.FULFILLED
    assert len(shown.verdicts) == client.asked == 3


def test_all_wishes_are_waited_for() -> None:
    client = Script([model("a", "Ready", 1), model("b", "Progressing")], [model("a", "Ready", 1), model("b", "Ready", 1)])
    views, _, _ = wait(client, "a", "b")
    assert set(views) == {"a", "b"}


def test_a_hopeless_model_is_reported_when_the_others_are_settled() -> None:
    bad = model("bad", "Failed", reason="no such file")
    client = Script(*[[bad, model("good", "Progressing")]] * 20, [bad, model("good", "Ready", 1)])
    with pytest.raises(UnfulfilledError, match="model bad does not come up: no such file") as caught:
        wait(client, "bad", "good")
    assert client.asked == 21
    assert "(good came up)" in caught.value.message
    assert "llmgwctl model show bad" in caught.value.remedy


def test_out_of_time_names_state_and_last_reason() -> None:
    client = Script([model("a", "Progressing", reason="downloading")], [model("a", "Progressing")])
    with pytest.raises(UnfulfilledError, match=r"not ready after 30s .*last reason: downloading"):
        wait(client, "a", timeout=30)


def test_removal_out_of_time() -> None:
    with pytest.raises(UnfulfilledError, match="not gone after 30s"):
        wait(Script([model("a", "Removing")]), "a", wish=Wish.REMOVE, timeout=30)


def test_a_coordinator_that_restarts_is_asked_again() -> None:
    away = UnreachableError("cannot reach")
    views, _, spent = wait(Script([model("a", "Progressing")], *[away] * 10, [model("a", "Ready", 1)]), "a")
    assert views["a"]["state"] == "Ready"
    assert spent < UNREACHABLE_SECONDS


def test_a_coordinator_that_stays_away_ends_the_wait() -> None:
    with pytest.raises(UnreachableError):
        wait(Script([model("a", "Progressing")], UnreachableError("cannot reach")), "a", timeout=600)
