"""What can go wrong while an engine is installed; each is also one of the agent's own reactions.

::

    RejectedError
    └── InstallRefusedError    give up: trying again cannot help (a wrong hash, no such version, a failed smoke test)
    AttemptError
    └── InstallFailedError     try again later: no network, no space, uv was killed
    Exception
    ├── UnknownEngineError     tell whoever asked: there is no such engine or version here
    └── EngineInUseError       tell whoever asked: it runs
"""

from __future__ import annotations

from llmgw_agent.errors import AttemptError, RejectedError


class InstallRefusedError(RejectedError):
    """This installation can never succeed as it is configured; the text says what, why and what to do."""


class InstallFailedError(AttemptError):
    """Not now; the text says what, why and what to do."""


class UnknownEngineError(Exception):
    """The text names what there is."""


class EngineInUseError(Exception):
    """The text says who uses it."""


InstallError = (InstallRefusedError, InstallFailedError)
