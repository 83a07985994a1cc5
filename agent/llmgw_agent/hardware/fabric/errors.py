"""What can go wrong when a fabric is mapped.

FabricMapError
├── ToolMissingError     a program of infiniband-diags is not installed. Reaction: say so once; the node maps nothing.
├── ToolFailedError      it ended with an error, or printed nothing of use. Reaction: report, try again next time.
└── ToolHungError        it did not end in time and was killed. Reaction: the same.
"""

from __future__ import annotations


class FabricMapError(Exception):
    """The fabric could not be mapped; the message says why and what helps."""


class ToolMissingError(FabricMapError):
    """A program is not installed."""


class ToolFailedError(FabricMapError):
    """A program failed."""


class ToolHungError(FabricMapError):
    """A program did not end in time."""
