"""An SGLang that can be installed on a machine without GPUs: enough of it to read its command line, not to serve."""

from __future__ import annotations

from typing import Any

from llmgw_testing.vllm_real import find_links

VERSION = "0.5.23"
#: What importing the server does without: kernels for GPUs, codecs, tokenizers of other formats, tools.
_UNNEEDED = """
anthropic apache-tvm-ffi av blobfile build compressed-tensors cuda-python datasets decord2 deepseek-recipe distro
easydict einops flash-attn-4 flashinfer_python gguf humming-kernels interegular kernels llguidance mistral_common
modelscope ninja numba nvidia-cutlass-dsl nvidia-mathdx nvidia-ml-py nvshmem4py-cu13 openai openai-harmony outlines
partial_json_parser prometheus-client py-spy python-dateutil python-multipart quack-kernels scipy sentencepiece
setproctitle sgl-deep-ep sgl-deep-gemm sgl-flash-mla sglang-kernel smg-grpc-servicer soundfile tiktoken tilelang timm
tml-renderers torch_memory_saver torchaudio torchcodec torchvision watchfiles xgrammar xxhash zstandard
"""


def install_settings() -> dict[str, Any]:
    """For the agent's ``engines.install.sglang``."""
    return {
        "version": VERSION,
        "requirements": ["sglang=={version}", "triton"],
        "overrides": ["torch==2.13.0+cpu", *(f'{name}; sys_platform == "never"' for name in _UNNEEDED.split())],
        "find_links": find_links(),
        "disk": "4GiB",
    }
