"""What can go wrong with weights; the class says the reaction.

WeightsError
├── SourceInvalidError      reject: the source is not written as any source is
├── SourceNotFoundError     reject: the host answered that there is no such thing
├── AccessDeniedError       reject: a token is missing, wrong, or not accepted for this repository
├── AddressRefusedError     reject: the source leads to an address that the settings do not allow
├── DigestMismatchError     reject: every place that was asked gave other bytes than promised
├── SourceUnavailableError  retry later: nobody who has it answers
├── NoSpaceError            retry when there is room: says how many bytes are needed and free
├── DiskError               retry when mended: the store's folder cannot be read or written
├── InUseError              retry when released: the weights are pinned by something that runs
├── UnloadableError         reject: the engine that it is for cannot load it
├── MetadataError           the file's header cannot be read (cut, corrupt, or another format)
└── ArchiveError            reject: an archive is unsafe or not what was promised; nothing was written
"""

from __future__ import annotations


class WeightsError(Exception):
    """Any failure of this package. ``recoverable`` tells whether trying again later, unchanged, can succeed."""

    recoverable = False


class SourceInvalidError(WeightsError):
    pass


class SourceNotFoundError(WeightsError):
    pass


class AccessDeniedError(WeightsError):
    pass


class AddressRefusedError(WeightsError):
    pass


class DigestMismatchError(WeightsError):
    """``mixed``: the bytes came from several places, so the last one asked may be innocent."""

    def __init__(self, message: str, *, mixed: bool = False) -> None:
        super().__init__(message)
        self.mixed = mixed


class SourceUnavailableError(WeightsError):
    """``retry_after`` in seconds when the server named a time."""

    recoverable = True

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoSpaceError(WeightsError):
    """``needed`` and ``free`` in bytes; ``free`` already leaves out what the settings reserve."""

    recoverable = True

    def __init__(self, message: str, *, needed: int, free: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.free = free


class DiskError(WeightsError):
    recoverable = True


class InUseError(WeightsError):
    recoverable = True


class UnloadableError(WeightsError):
    pass


class MetadataError(WeightsError):
    pass


class ArchiveError(WeightsError):
    pass
