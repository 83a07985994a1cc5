"""Power caps: which limit to set for a wish. Pure."""

from __future__ import annotations

from dataclasses import dataclass


class PowerCapError(Exception):
    """A power cap cannot be set; the message says why. Reaction: tell whoever asked, keep the limit as it is.

    - :class:`PowerCapRangeError`: outside of what the card allows.
    - :class:`PowerCapUnsupportedError`: this card, or this guest, has no settable limit.
    - :class:`PowerCapRefusedError`: the driver refused it.
    """


class PowerCapRangeError(PowerCapError):
    """The wish is below the least or above the most that the card allows."""


class PowerCapUnsupportedError(PowerCapError):
    """The card has no settable limit."""


class PowerCapRefusedError(PowerCapError):
    """The driver refused the limit or did not answer."""


@dataclass(frozen=True)
class PowerLimits:
    """What a card allows, in watts; None for each that the driver does not tell."""

    least: float | None
    most: float | None
    default: float | None


def plan(uuid: str, limits: PowerLimits, watts: float | None) -> int:
    """The limit to set in milliwatts; a wish of None restores the default.

    Raises:
        PowerCapRangeError, PowerCapUnsupportedError: nothing can or may be set.
    """
    if limits.least is None or limits.most is None:
        raise PowerCapUnsupportedError(
            f"{uuid}: the driver offers no power limit for this GPU; guests, laptops and modules that share one have none"
        )
    if watts is None:
        if limits.default is None:
            raise PowerCapUnsupportedError(f"{uuid}: the default power limit is not known; name a limit")
        watts = limits.default
    if not limits.least <= watts <= limits.most:
        raise PowerCapRangeError(
            f"{uuid}: a power limit of {watts:g} W is outside of {limits.least:g} to {limits.most:g} W; choose one inside"
        )
    return round(watts * 1000)


_REFUSALS = {
    2: "the driver calls it out of range",
    3: "the driver does not support it here",
    4: "it needs root: run the agent as root",
    15: "the GPU is lost",
}


def refusal(uuid: str, code: int) -> PowerCapRefusedError:
    """NVML's answer in words."""
    return PowerCapRefusedError(f"{uuid}: the power limit was not set: {_REFUSALS.get(code, f'NVML answered {code}')}")
