"""What can go wrong in llmgwctl. Each error carries what the user can do about it, and the exit status.

::

    CtlError                 1  something failed while running
    ├── RefusedError         1  the coordinator answered, and said no
    ├── StackError           1  `up`: a part of the stack did not come up or cannot go on
    ├── BadInputError        2  wrong usage, a file that cannot be used, a token that is not accepted
    ├── UnreachableError     3  no coordinator answers, or it cannot reach its store
    ├── NotFoundError        4  no such model, replica or node
    ├── UnfulfilledError     5  a wish did not come true: in time, or at all
    └── StoppedEarlyError  130  the user ended it before it was done
"""

from __future__ import annotations


class CtlError(Exception):
    """The root. ``message`` names the thing and the cause, ``remedy`` what to do (may be empty)."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class RefusedError(CtlError):
    """The coordinator refused or failed, for a reason that it gives."""


class StackError(CtlError):
    """A part of the stack that `up` runs failed."""


class BadInputError(CtlError):
    exit_code = 2


class UnreachableError(CtlError):
    exit_code = 3


class NotFoundError(CtlError):
    exit_code = 4


class UnfulfilledError(CtlError):
    exit_code = 5


class StoppedEarlyError(CtlError):
    exit_code = 130
