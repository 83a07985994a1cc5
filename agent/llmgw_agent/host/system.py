"""The operating system."""

from __future__ import annotations

import platform


def os_name() -> str:
    """For people, for example ``Debian GNU/Linux 12 (bookworm)``."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def kernel() -> str:
    return platform.release()
