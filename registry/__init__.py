"""Runs the fastest kernel of an op: plugins implement ops, the tuner verifies and measures, dispatch runs the winner.

    import registry
    y = registry.call("softmax", x)

Importing this package loads neither Triton, nor a plugin, nor the database or the tuner.
"""

from . import distributed as distributed
from . import nn as nn
from .api import (
    call,
    configure,
    define,
    explain,
    implementations,
    load_file,
    op,
    ops,
    plugins,
    record,
    register,
    reload,
    tune,
    using,
    warmup,
    weights_changed,
)
from .backends.library_function import implementation_of
from .contract import Backward, CanonicalCall, Floor, Op, Tolerance, octave
from .contracts.families import gemm_op, rows_op
from .device import Device
from .discovery.hooks import defines, implements
from .discovery.plugin import PluginReport, PluginWarning
from .dispatch.explain import Explanation
from .dispatch.plans.plan import Candidate
from .dispatch.warning import DispatchWarning
from .errors import (
    ArgumentTypeError,
    CompileError,
    DeviceError,
    InvalidArgumentError,
    InvalidDefinitionError,
    NotReadyError,
    NotTunedError,
    OutOfRangeError,
    OutOfResourcesError,
    PluginError,
    RegistryError,
    ShapesFileError,
    StoreError,
    UnknownNameError,
    UnsupportedError,
)
from .implementation import Implementation, Launch
from .packed import PackedExperts, PackedWeight, quantize
from .problem import Arguments, Problem, TensorSpec, Value
from .space import Config, Space
from .sparse import Sparse24Weight, sparsify24

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "Arguments",
    "Backward",
    "Candidate",
    "CanonicalCall",
    "CompileError",
    "Config",
    "Device",
    "DeviceError",
    "DispatchWarning",
    "Explanation",
    "Floor",
    "Implementation",
    "InvalidArgumentError",
    "InvalidDefinitionError",
    "Launch",
    "NotReadyError",
    "NotTunedError",
    "Op",
    "OutOfRangeError",
    "OutOfResourcesError",
    "PackedExperts",
    "PackedWeight",
    "PluginError",
    "PluginReport",
    "PluginWarning",
    "Problem",
    "RegistryError",
    "ShapesFileError",
    "Space",
    "Sparse24Weight",
    "StoreError",
    "TensorSpec",
    "Tolerance",
    "UnknownNameError",
    "UnsupportedError",
    "Value",
    "call",
    "configure",
    "define",
    "defines",
    "explain",
    "gemm_op",
    "implementation_of",
    "implementations",
    "implements",
    "load_file",
    "octave",
    "op",
    "ops",
    "plugins",
    "quantize",
    "record",
    "register",
    "reload",
    "rows_op",
    "sparsify24",
    "tune",
    "using",
    "warmup",
    "weights_changed",
]
