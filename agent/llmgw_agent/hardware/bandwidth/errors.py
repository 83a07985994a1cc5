"""What can go wrong in a bandwidth test.

BandwidthError
├── PortsBusyError         a replica serves on those ports. Reaction: wait, or force it knowingly.
├── ProgramMissingError    ib_write_bw is not installed. Reaction: install perftest, or test over TCP.
├── PeerUnreachableError   the other node's server cannot be reached. Reaction: look at firewall and route.
└── MeasurementFailedError the test broke off or gave no result.
"""

from __future__ import annotations


class BandwidthError(Exception):
    """The test gave no result; the message says why and what helps."""


class PortsBusyError(BandwidthError):
    """A replica serves on the ports to be tested."""


class ProgramMissingError(BandwidthError):
    """The RDMA test program is not installed."""


class PeerUnreachableError(BandwidthError):
    """The other side cannot be reached."""


class MeasurementFailedError(BandwidthError):
    """The test broke off."""
