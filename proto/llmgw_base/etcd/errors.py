"""What can go wrong with the store. The name says the reaction.

::

    StoreError
    ├── StoreUnavailableError     retry: no member answered in time; a read may be repeated, a write may have happened
    │   └── OutcomeUnknownError   read, then decide: the answer to a write was lost
    ├── StoreRefusedError         give up and tell the operator: credentials, permission, out of space, bad request
    │   ├── StoreAuthError
    │   └── StoreFullError
    ├── StoreUnsuitableError      give up: the server's version is not one to trust
    ├── CompactedError            list again
    └── LeaseLostError            grant a new lease and register again
"""

from __future__ import annotations


class StoreError(Exception):
    """The root; never raised itself."""


class StoreUnavailableError(StoreError):
    """No member answered in time."""


class OutcomeUnknownError(StoreUnavailableError):
    """A write was sent and its answer was lost: it may have happened. Never retried blindly."""


class StoreRefusedError(StoreError):
    """The store answered, and said no."""


class StoreAuthError(StoreRefusedError):
    """Wrong user or password, or the user may not touch this key."""


class StoreFullError(StoreRefusedError):
    """etcd is out of space (NOSPACE alarm): grants and puts fail, reads and keep-alives go on."""


class StoreUnsuitableError(StoreError):
    """The server's version has known faults that lose data."""


class CompactedError(StoreError):
    """A watch asked for a revision that is no longer kept."""


class LeaseLostError(StoreError):
    """The lease expired or was revoked."""
