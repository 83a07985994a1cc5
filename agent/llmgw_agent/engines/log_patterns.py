"""What engines on Python, CUDA and NCCL say alike in their logs."""

from __future__ import annotations

import re

from llmgw_agent.engines.base import Pattern

#: Of weights in the hub's layout.
WEIGHTS_PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        re.compile(
            r"Cannot find any model weights with `?([^`\s]+)|does not appear to have a file named (\S+)|"
            r"FileNotFoundError: .*?No such file or directory: '([^']+)'"
        ),
        "a file of the weights is missing ({0}).",
        "Complete the folder, or correct source.",
        final=True,
    ),
    Pattern(
        re.compile(r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization"),
        "the weights are damaged.",
        "Fetch or copy them again.",
        final=True,
    ),
)

#: Those first that tell most.
COMMON_PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        re.compile(r"error: (unrecognized arguments: .+|argument .+|ambiguous option: .+|the following arguments .+)"),
        "the engine does not take its arguments ({0}).",
        "Correct the model's args, or use another version of the engine.",
        final=True,
    ),
    Pattern(
        re.compile(r"\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE"),
        "the port was taken.",
        "Another port is tried.",
        port_taken=True,
    ),
    Pattern(
        re.compile(r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available"),
        "the GPU's driver or the GPU itself is too old for this build of the engine.",
        "Update the NVIDIA driver, or install a build for an older CUDA.",
        final=True,
    ),
    Pattern(
        re.compile(r"gated repo|GatedRepoError|401 Client Error|Access to model .+ is restricted"),
        "the weights are behind an access agreement.",
        "Accept it on the hub and give the agent a token that may read them, or copy the weights to the node.",
        final=True,
    ),
    Pattern(
        re.compile(r"no space left on device|os error 28", re.IGNORECASE),
        "the disk or /dev/shm is full.",
        "Free space there.",
    ),
    Pattern(
        re.compile(r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|HIP out of memory"),
        "GPU memory ran out.",
        "Give the model more GPUs, a shorter context or a smaller quantisation, or see what else uses the GPU.",
    ),
    Pattern(
        re.compile(
            r"(NCCL (?:error|WARN)[^\n]{0,120}|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError)"
        ),
        "the GPUs could not talk to each other ({0}).",
        "Look at the fabric with `llmgwctl fabric` and at the log; NCCL_DEBUG=INFO in the model's env makes it say more.",
    ),
    Pattern(
        re.compile(r"CUDA error: ([^\n]{1,100})|\bXid\b"),
        "the GPU or its driver failed ({0}).",
        "Look at the node's GPU health; if it comes back, reset the GPU or reboot the host.",
    ),
    Pattern(
        re.compile(r"std::bad_alloc|MemoryError|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory"),
        "host memory ran out.",
        "Give the model a node with more memory, or smaller limits.",
    ),
)
