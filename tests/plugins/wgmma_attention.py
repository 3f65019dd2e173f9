"""cuda.wgmma's two attentions, devices for them, and what compiles for a configuration."""

from __future__ import annotations

from dataclasses import replace

import torch

from registry.artifact import Signature, Variant
from registry.contracts import ATTENTION, ATTENTION_VARLEN
from registry.device import Device
from registry.problem import Problem
from registry.space import Config
from registry_cuda.attention.forward import WgmmaAttention
from registry_cuda.attention.varlen import PackedWgmmaAttention
from registry_cuda.attention.wgmma import WgmmaForward

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
SMALL_H200 = replace(H200, multiprocessors=3)
"""Few multiprocessors, so that each goes from tile to tile."""
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
CONTRACTS = {op.name: op for op in (ATTENTION, ATTENTION_VARLEN)}
FORWARD, PACKED = WgmmaAttention(), PackedWgmmaAttention()


def implementation_of(problem: Problem) -> WgmmaForward:
    return FORWARD if problem.op == "attention" else PACKED


def variant_of(problem: Problem, config: Config) -> Variant:
    arguments = problem.traits.arguments
    assert arguments is not None
    signature = Signature(arguments, CONTRACTS[problem.op].output_specs(arguments, torch.device("cpu")))
    (variant,) = implementation_of(problem).variants(problem, config, H200, signature)
    return variant


def of_each_tile(problem: Problem) -> list[Config]:
    """A configuration of each number of warpgroups and of keys, whose registers differ."""
    space = implementation_of(problem).space(problem, H200)
    return list({(config["warpgroups"], config["keys"]): config for config in space}.values())
