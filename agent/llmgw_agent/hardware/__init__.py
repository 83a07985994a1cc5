"""What this host is made of: GPUs, NVLink, InfiniBand, PCIe, NUMA, and how healthy they are.

Public API (import from the modules named; this package imports nothing, so that its helper processes stay small):

``detect.detect(sysfs_root=Path("/sys"), deadline=5.0) -> Hardware``
    One look at the host. ``Hardware.gpu_facts()`` gives the records for the inventory, ``Hardware.topology()`` the JSON
    for ``InventoryRecord.topology`` (the same as ``llmgw-agent detect -o json``), ``Hardware.problems`` what is wrong
    (code, subject, text), ``Hardware.notes`` what is only worth knowing. It never raises for what the hardware does
    and returns after ``deadline`` seconds at the latest.
``detect.detect_main(argv) -> int``
    The ``detect`` subcommand.
``watch.HardwareWatch(publish, …)``
    What a running agent uses: looks, watches live, and calls ``publish(hardware)`` whenever what is to be published changed.
``telemetry.Telemetry``
    Its live part: samples and events from a long-lived helper, turned into quarantines and metrics.
``fabric``
    The map of an InfiniBand subnet: parsers, mapper, changes between maps, election of the mapper.
``bandwidth``
    The test between two nodes: a TCP test, and ``ib_write_bw`` where there is RDMA.

NVML and sysfs are read by helper processes (``nvml_probe``, ``host_probe``, ``sampler``) that can be abandoned: a driver call
that hangs costs its helper, not the agent.
"""
