"""What can go wrong in the agent. The name says the reaction.

::

    AgentError
    ├── RejectedError        give up: this node can never fulfil this wish; says thing, cause and remedy
    ├── AttemptError         try again with backoff: this start or this run of the engine failed
    │   ├── PortTakenError   try again at once on another port
    │   └── GangOverError    end the engine here too: of a replica over several nodes another node's part ended
    ├── NotNowError          tell whoever asked: the shard is not in a state for what he wishes
    ├── SurvivorsError       wait and look again: processes outlived SIGKILL, nothing may start in their place
    └── StateFileError       set the file aside and rebuild its content from processes and wishes
"""

from __future__ import annotations


class AgentError(Exception):
    """The root; never raised itself."""


class RejectedError(AgentError):
    """The wish cannot be fulfilled here, however often it is tried."""


class AttemptError(AgentError):
    """One attempt to run the engine failed; the text says cause and remedy."""


class PortTakenError(AttemptError):
    """The engine found its port in use."""


class GangOverError(AttemptError):
    """The present attempt of a replica over several nodes is over because of the member of that rank."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


class NotNowError(AgentError):
    """An operator wishes something of a shard that is not here or on its way out."""


class SurvivorsError(AgentError):
    """Processes are still there after SIGKILL, as happens when a driver call hangs in the kernel."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        who = f"processes {', '.join(map(str, pids))}" if pids else "processes that the agent cannot see"
        super().__init__(
            f"{who} do not die of SIGKILL; they hang in the kernel, most likely in a driver: "
            "look at `dmesg`, and reboot the host if they stay"
        )
        self.pids = pids


class StateFileError(AgentError):
    """A state file is not what was written: truncated, damaged, or of a newer version."""
