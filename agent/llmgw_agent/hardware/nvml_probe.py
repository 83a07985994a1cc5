"""The helper process that looks at all GPUs once: ``python -m llmgw_agent.hardware.nvml_probe [--skip INDEX ...]``.

It prints one JSON object a line and flushes each, so that whoever gives up on it has what was found so far: ``at`` before
each step that could hang, ``system``, ``gpu`` and ``links`` per GPU, ``pairs``, and ``end``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llmgw_agent.hardware import nvml_gpu
from llmgw_agent.hardware.nvml_calls import NvmlFailedError, call, text


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _value(name: str, *args: Any) -> Any:
    try:
        return call(name, *args)
    except NvmlFailedError:
        return None


def main(argv: list[str]) -> int:
    skip = {int(each) for each in argv[1:] if each != "--skip"}
    say({"kind": "at", "step": "nvmlInit"})
    try:
        call("nvmlInit")
        count = int(call("nvmlDeviceGetCount"))
    except NvmlFailedError as error:
        say({"kind": "system", "error": error.code})
        say({"kind": "end"})
        return 0
    say(
        {
            "kind": "system",
            "error": 0,
            "count": count,
            "driver": text(_value("nvmlSystemGetDriverVersion")),
            "nvml": text(_value("nvmlSystemGetNVMLVersion")),
            "cuda": _value("nvmlSystemGetCudaDriverVersion_v2") or _value("nvmlSystemGetCudaDriverVersion"),
        }
    )
    handles: dict[int, tuple[Any, list[int] | None]] = {}
    for index in range(count):
        if index in skip:
            continue
        say({"kind": "at", "step": "device", "index": index})
        try:
            handle = call("nvmlDeviceGetHandleByIndex", index)
        except NvmlFailedError as error:
            say({"kind": "gpu", "index": index, "error": error.code})
            continue
        facts = nvml_gpu.identity(index, handle)
        say(facts)
        if not facts["error"]:
            handles[index] = handle, facts.get("cc")
    for index, (handle, capability) in handles.items():
        say({"kind": "at", "step": "NVLink", "index": index})
        say(nvml_gpu.links(index, handle, capability))
    say({"kind": "at", "step": "peer access"})
    pairs = [
        {"a": one, "b": two} | nvml_gpu.pair(handles[one][0], handles[two][0])
        for one in handles
        for two in handles
        if one < two
    ]
    say({"kind": "pairs", "pairs": pairs})
    say({"kind": "end"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
