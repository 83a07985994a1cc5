"""Calls into NVML that cannot raise for what one card, driver or container does not offer.

Imported by the helper processes only. The rules: a call that is not supported (3), not permitted (4) or missing in this
driver (13) means "no value"; an indexed query beyond the end (2, 6) too; a lost GPU (15) is :class:`GpuLostError`;
anything else is remembered by name, and the value is absent.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 6, 13
INVALID_ARGUMENT, TIMEOUT, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 2, 10, 15, 16, 999
_ABSENT = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND})
_END = frozenset({INVALID_ARGUMENT, NOT_FOUND})


class GpuLostError(Exception):
    """The driver says that this GPU is gone (NVML code 15). Reaction: report that GPU, go on with the others."""


class NvmlFailedError(Exception):
    """NVML answered a call with ``code``. Reaction: report the code; it is a condition of the node or of one GPU."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call} answered {code}")
        self.code = code


def call(name: str, *args: Any) -> Any:
    """One call of nvidia-ml-py by its name.

    Raises:
        NvmlFailedError: with NVML's code; a function that this driver or this nvidia-ml-py lacks is code 13.
    """
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        raise NvmlFailedError(int(error.value), name) from None
    except (pynvml.NVMLLibraryMismatchError, AttributeError):
        raise NvmlFailedError(FUNCTION_NOT_FOUND, name) from None
    except (ctypes.ArgumentError, UnicodeDecodeError):
        raise NvmlFailedError(UNKNOWN, name) from None


class Asker:
    """Asks about one GPU and remembers what went wrong.

    ``failed`` maps a call's name to NVML's code; ``denied`` are calls refused for want of permission; ``reset`` is set when
    the driver wants a reset of the GPU first.
    """

    def __init__(self) -> None:
        self.failed: dict[str, int] = {}
        self.denied: set[str] = set()
        self.reset = False

    def __call__(self, name: str, *args: Any, indexed: bool = False) -> Any:
        """The call's value, or None when there is none.

        Raises:
            GpuLostError: the GPU is gone.
        """
        try:
            return call(name, *args)
        except NvmlFailedError as error:
            if error.code == GPU_IS_LOST:
                raise GpuLostError from None
            if error.code == RESET_REQUIRED:
                self.reset = True
            elif error.code == NO_PERMISSION:
                self.denied.add(name)
            elif error.code not in _ABSENT and not (indexed and error.code in _END):
                self.failed[name] = error.code
            return None

    def fields(self, handle: Any, ids: list[int | tuple[int, int]]) -> list[int | None]:
        """Field values by id or (id, scope), None for each that this GPU does not have."""
        values = self("nvmlDeviceGetFieldValues", handle, ids)
        if values is None:
            return [None] * len(ids)
        return [_field(each) for each in values]


def _field(value: Any) -> int | None:
    if value.nvmlReturn != 0:
        return None
    kind = value.valueType
    if kind == 0:
        return int(value.value.dVal)
    if kind == 1:
        return int(value.value.uiVal)
    if kind == 4:
        return int(value.value.sllVal)
    if kind == 5:
        return int(value.value.siVal)
    return int(value.value.ullVal)


def text(value: Any) -> str | None:
    """A name from NVML: some calls give bytes, some text."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").rstrip("\0") or None
    return str(value) or None


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """An address as sysfs writes it: ``0000:1b:00.0``."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def remote_address(bus_id: Any) -> str | None:
    """A link's remote end as sysfs writes it; None when the driver does not tell (empty, or ``FFFFFFFF:FF:FF.0``)."""
    raw = text(bus_id)
    if not raw or raw.upper().startswith("FFFFFFFF"):
        return None
    try:
        domain, bus, rest = raw.split(":")
        device, _, function = rest.partition(".")
        return pci_address(int(domain, 16), int(bus, 16), int(device, 16), int(function or "0", 16))
    except ValueError:
        return None
