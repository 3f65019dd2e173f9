"""Which project a contestant of a race is of, by its name, and which version of each is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from registry.device import installed_version

ADAPTERS = ("humming", "quack", "liger", "flashinfer", "flash_attn", "cublaslt")
"""What the names of implementations begin with that call a library."""

_PROJECTS = {
    "torch.compile": "torch.compile",
    "torch": "torch",
    "SDPA": "torch",
    "liger": "Liger",
    "flashinfer": "FlashInfer",
    "quack": "QuACK",
    "flash_attn": "FlashAttention",
    "humming": "Humming",
    "cublaslt": "cuBLASLt",
}
"""Project, by how names begin in any case; the first that fits."""

_DISTRIBUTIONS = (
    "liger-kernel", "flashinfer-python", "quack-kernels", "flash-attn-4", "flash-attn-3", "flash-attn",
    "nvidia-cutlass-dsl", "humming-kernels", "flag-gems", "gemlite",
    "nvmath-python",
)  # fmt: skip


def project_of(contestant: str) -> str:
    """The project that a contestant is of; the contestant itself where that is not known."""
    name = contestant.lower()
    return next((project for start, project in _PROJECTS.items() if name.startswith(start.lower())), contestant)


def projects_in(contestants: Iterable[str]) -> list[str]:
    """The projects of contestants in one order, those that are known first."""
    found = {project_of(each) for each in contestants}
    known = [each for each in dict.fromkeys(("torch", *_PROJECTS.values())) if each in found]
    return known + sorted(found - {*known})


def versions() -> Mapping[str, str]:
    """The installed libraries and their versions."""
    found = {name: installed_version(name) for name in _DISTRIBUTIONS}
    return {name: version for name, version in found.items() if version}
