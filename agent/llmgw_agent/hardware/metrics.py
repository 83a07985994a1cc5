"""Prometheus metrics of GPUs, NVLinks and RDMA ports, from the last sample.

What dashboards know from the DCGM exporter is here under plain names with units; ``docs/hardware.md`` has the list of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.health import Report
from llmgw_agent.hardware.rates import RateMeter
from llmgw_agent.hardware.raw import Event, GpuSample, Ports, PortSample, Sample
from llmgw_agent.hardware.throttle import throttle_words
from llmgw_base.clock import Clock, SystemClock

_GPU = ["gpu", "class", "pci"]
_LINK = [*_GPU, "link"]
_PORT = ["hca", "port", "link_layer"]
_XID = 8

#: Name, help, and how to read the value of a sample; None leaves the series out.
_GAUGES: list[tuple[str, str, Any]] = [
    ("temperature_celsius", "Temperature of the GPU", lambda g: g.temperature),
    ("power_watts", "Power drawn", lambda g: None if g.power is None else g.power / 1000),
    ("power_limit_watts", "Power limit that is set", lambda g: None if g.power_limit is None else g.power_limit / 1000),
    (
        "utilization_ratio",
        "Part of the time in which a kernel ran",
        lambda g: g.utilization[0] / 100 if g.utilization else None,
    ),
    (
        "memory_utilization_ratio",
        "Part of the time in which memory was used",
        lambda g: g.utilization[1] / 100 if g.utilization else None,
    ),
    ("memory_used_bytes", "Memory in use", lambda g: g.memory_used),
    ("memory_total_bytes", "Memory of the GPU", lambda g: g.memory_total),
    ("sm_clock_hertz", "Clock of the multiprocessors", lambda g: None if g.clock_sm is None else g.clock_sm * 1e6),
    ("memory_clock_hertz", "Clock of the memory", lambda g: None if g.clock_mem is None else g.clock_mem * 1e6),
    ("pcie_generation", "PCIe generation that the link runs at", lambda g: g.pcie_gen),
    ("pcie_lanes", "PCIe lanes that the link runs with", lambda g: g.pcie_width),
    ("row_remap_pending", "A memory row waits to be remapped", lambda g: g.remapped[2] if g.remapped else None),
    ("row_remap_failed", "A memory row could not be remapped", lambda g: g.remapped[3] if g.remapped else None),
    ("lost", "The GPU has fallen off the bus", lambda g: int(bool(g.error))),
]
_COUNTERS: list[tuple[str, str, Any]] = [
    ("ecc_corrected_errors", "Corrected memory errors since the driver was loaded", lambda g: g.ecc_corrected),
    ("ecc_uncorrected_errors", "Uncorrectable memory errors since the driver was loaded", lambda g: g.ecc_uncorrected),
    ("remapped_rows", "Memory rows remapped for uncorrectable errors", lambda g: g.remapped[1] if g.remapped else None),
    ("pcie_replays", "PCIe packets sent again", lambda g: g.pcie_replays),
    ("nvlink_transmit_bytes", "Bytes sent over all NVLinks", lambda g: g.nvlink_bytes[0] if g.nvlink_bytes else None),
    ("nvlink_receive_bytes", "Bytes received over all NVLinks", lambda g: g.nvlink_bytes[1] if g.nvlink_bytes else None),
]
_PORT_COUNTERS = {
    "port_xmit_bytes": ("transmit_bytes", "Bytes sent"),
    "port_rcv_bytes": ("receive_bytes", "Bytes received"),
    "port_xmit_packets": ("transmit_packets", "Packets sent"),
    "port_rcv_packets": ("receive_packets", "Packets received"),
    "symbol_error": ("symbol_errors", "Minor link errors"),
    "link_downed": ("link_downed", "Times that the link went down"),
    "link_error_recovery": ("link_error_recoveries", "Times that the link recovered by itself"),
    "local_link_integrity_errors": ("link_integrity_errors", "Times that local errors passed their threshold"),
    "port_rcv_errors": ("receive_errors", "Bad packets received"),
    "port_xmit_discards": ("transmit_discards", "Packets dropped for want of room or a way"),
    "port_xmit_wait": ("transmit_wait_ticks", "Ticks in which data waited to be sent"),
    "vl15_dropped": ("management_packets_dropped", "Management packets dropped"),
    "out_of_sequence": ("out_of_sequence_packets", "RDMA packets out of order"),
    "packet_seq_err": ("sequence_error_naks", "Negative acknowledgements received"),
    "local_ack_timeout_err": ("ack_timeouts", "RDMA acknowledgements that did not come"),
    "rnr_nak_retry_err": ("receiver_not_ready_errors", "Receiver was not ready too often"),
    "np_cnp_sent": ("congestion_notifications_sent", "Congestion notifications sent"),
}


class HardwareMetrics(Collector):
    """Registers itself; feed it with what the telemetry gives (:meth:`sample`, :meth:`report`, :meth:`hardware`)."""

    def __init__(self, registry: CollectorRegistry, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._meter = RateMeter()
        self._labels: dict[str, list[str]] = {}
        self._gpus: dict[str, GpuSample] = {}
        self._links: dict[str, GpuSample] = {}
        self._ports: list[PortSample] = []
        self._events: dict[tuple[str, int], int] = {}
        self._report = Report([], {})
        registry.register(self)

    def hardware(self, found: Hardware) -> None:
        """Class and place of each GPU, for the labels."""
        self._labels = {gpu.raw.uuid: [gpu.gpu_class, gpu.address or ""] for gpu in found.gpus if gpu.raw.uuid is not None}

    def report(self, report: Report) -> None:
        self._report = report

    def sample(self, line: Sample | Ports | Event) -> None:
        match line:
            case Sample(gpus=gpus):
                self._gpus = {gpu.uuid: gpu for gpu in gpus}
                self._links |= {gpu.uuid: gpu for gpu in gpus if gpu.links is not None}
            case Ports(ports=ports):
                self._ports = ports
                if line.counted:
                    self._meter.update(self._clock.monotonic(), ports)
            case Event(type=kind) if kind == _XID:
                key = line.uuid, line.data
                self._events[key] = self._events.get(key, 0) + 1

    def _of(self, uuid: str) -> list[str]:
        return [uuid, *self._labels.get(uuid, ["", ""])]

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_gpus()
        yield from self._collect_links()
        yield from self._collect_ports()
        quarantined = GaugeMetricFamily(
            "llmgw_hardware_quarantined", "1 for each GPU or port that no replica may use", labels=["subject", "reason"]
        )
        for subject, reason in self._report.quarantine.items():
            quarantined.add_metric([subject, reason.partition(":")[0]], 1)
        yield quarantined
        problems = GaugeMetricFamily("llmgw_hardware_problems", "Standing problems by code", labels=["code"])
        codes = [problem.code for problem in self._report.problems]
        for code in sorted(set(codes)):
            problems.add_metric([str(code)], codes.count(code))
        yield problems

    def _collect_gpus(self) -> Iterator[Metric]:
        for name, text, value in _GAUGES:
            yield self._family(GaugeMetricFamily(f"llmgw_gpu_{name}", text, labels=_GPU), value)
        for name, text, value in _COUNTERS:
            yield self._family(CounterMetricFamily(f"llmgw_gpu_{name}", text, labels=_GPU), value)
        throttled = GaugeMetricFamily(
            "llmgw_gpu_throttled", "1 for each reason that holds the clocks down", labels=[*_GPU, "reason"]
        )
        for uuid, gpu in self._gpus.items():
            for reason in throttle_words(gpu.throttle):
                throttled.add_metric([*self._of(uuid), reason], 1)
        yield throttled
        xids = CounterMetricFamily("llmgw_gpu_xid_errors", "XID errors since the agent started", labels=[*_GPU, "xid"])
        for (uuid, number), count in self._events.items():
            xids.add_metric([*self._of(uuid), str(number)], count)
        yield xids

    def _family(self, family: GaugeMetricFamily | CounterMetricFamily, value: Any) -> Metric:
        for uuid, gpu in self._gpus.items():
            found = value(gpu)
            if found is not None:
                family.add_metric(self._of(uuid), found)
        return family

    def _collect_links(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("llmgw_gpu_nvlink_up", "1 while the NVLink is active", labels=_LINK)
        errors = CounterMetricFamily("llmgw_gpu_nvlink_errors", "Errors of an NVLink by kind", labels=[*_LINK, "kind"])
        for uuid, gpu in self._links.items():
            for link in gpu.links or []:
                where = [*self._of(uuid), str(link.link)]
                up.add_metric(where, int(link.up))
                for kind, count in link.errors.items():
                    errors.add_metric([*where, kind], count)
        yield up
        yield errors

    def _collect_ports(self) -> Iterator[Metric]:
        active = GaugeMetricFamily("llmgw_rdma_port_active", "1 while the port is active", labels=_PORT)
        rate = GaugeMetricFamily("llmgw_rdma_port_rate_bits_per_second", "Rate of the link", labels=_PORT)
        use = {
            "port_xmit_bytes": GaugeMetricFamily("llmgw_rdma_port_transmit_bits_per_second", "Sent at present", labels=_PORT),
            "port_rcv_bytes": GaugeMetricFamily("llmgw_rdma_port_receive_bits_per_second", "Received at present", labels=_PORT),
        }
        counters = {
            name: CounterMetricFamily(f"llmgw_rdma_port_{shown}", text, labels=_PORT)
            for name, (shown, text) in _PORT_COUNTERS.items()
        }
        for port in self._ports:
            where = [port.hca, str(port.port), port.link_layer]
            active.add_metric(where, int(port.state == "ACTIVE"))
            if port.rate is not None:
                rate.add_metric(where, port.rate * 1e9)
            for name, value in port.counters.items():
                if name in counters:
                    counters[name].add_metric(where, value)
            for name, family in use.items():
                if name in (now := self._meter.rates.get(port.name, {})):
                    family.add_metric(where, now[name] * 8)
        yield active
        yield rate
        yield from use.values()
        yield from counters.values()
