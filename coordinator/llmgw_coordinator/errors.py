"""What can go wrong in the coordinator. The name says the reaction.

::

    CoordinatorError
    ├── NotLeaderError      stop acting; campaign again
    └── SpecConflictError   tell the caller to try again: others kept changing the same model
"""

from __future__ import annotations


class CoordinatorError(Exception):
    """The root; never raised itself."""


class NotLeaderError(CoordinatorError):
    """This coordinator does not lead, or leads no longer; nothing was written."""


class SpecConflictError(CoordinatorError):
    """A model changed under the writer again and again."""
