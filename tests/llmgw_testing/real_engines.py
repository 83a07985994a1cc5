"""One stack whose nodes install real engines, for all tests that need them: an engine takes most of a minute to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from llmgw_testing import sglang_real, vllm_real
from llmgw_testing.stack import Daemon, Stack
from llmgw_testing.vllm_real import START
from llmgw_testing.wait import wait_until

MODEL = "org/tiny"


@dataclass
class Site:
    """One node (``kind: single``) that installs real engines when a model needs them, and a router. ``source``: a tiny model
    without weights."""

    stack: Stack
    router: Daemon
    source: Path

    def add_node(self, name: str, kind: str, *, inside: Sequence[str] = (), address: str = "127.0.0.1") -> Daemon:
        """``kind`` becomes the node's label of that name."""
        install = {"vllm": vllm_real.install_settings(), "sglang": sglang_real.install_settings()}
        node = {"name": name, "address": address, "labels": {"kind": kind}}
        return self.stack.agent(name, inside=inside, node=node, listen=f"{address}:0", engines={"install": install})

    def rejection(self, model: str) -> str:
        """Waits until a replica of the model is rejected; returns why."""

        def reason() -> str | None:
            return next((each["reason"] for each in self.stack.replicas(model) if each["state"] == "Rejected"), None)

        said = wait_until(reason, within=START, what=f"{model} to be rejected", every=0.3)
        assert said is not None
        return said

    def ask(self, model: str) -> str | None:
        client = self.stack.client(self.router)
        messages = [openai.types.chat.ChatCompletionUserMessageParam(role="user", content="Hello")]
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        return answer.choices[0].message.content


@dataclass
class Served:
    """The model that most tests ask."""

    site: Site
    seen: list[str]
    """The reasons that the replica's record showed while the engine was installed, in order, each once."""
    seconds: float

    @property
    def stack(self) -> Stack:
        return self.site.stack

    @property
    def client(self) -> openai.OpenAI:
        return self.stack.client(self.site.router)

    @property
    def python(self) -> Path:
        """Of the environment that the engine runs from."""
        (replica,) = self.stack.replicas(MODEL)
        return self.stack.root / f"agent-{replica['node']}" / "engines" / "vllm" / "current" / "bin" / "python"
