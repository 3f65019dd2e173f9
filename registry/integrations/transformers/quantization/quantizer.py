"""RegistryQuantizer: packs a model's linear layers while transformers loads them, or loads layers that are packed."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from ....errors import InvalidArgumentError, RegistryError
from ....nn import PackedLinear, ScaledExpertsMlp, ScaledLinear
from ....problem import dtype_name
from ..parallel.agreeing import mesh_of, raise_together
from ..parallel.layers import gathered
from ..parallel.styles import check_release
from .checkpoints import METHOD, PackedForm, TensorFiles
from .config import EXPERT_BITS, OTHER_EXPERTS, RegistryConfig
from .dense import linear_layers
from .expert_reading import is_for_experts, read_experts
from .experts import (
    DOWN,
    GATE_UP,
    expert_modules,
    form_of_experts,
    packed_experts,
    put_empty_experts,
    unpack_experts,
)
from .initialising import guard_packed_layers, unguard
from .missing import check_complete
from .operations import PackWeights, is_ours, read_packed
from .packing import needs_whole, part_read
from .record import LoadingRecord
from .replacing import form_of, packed_layers, unpack_layers
from .weight_readers import weight_readers

Module = TypeVar("Module", bound=torch.nn.Module)


@register_quantizer(METHOD)
class RegistryQuantizer(HfQuantizer):  # type: ignore[misc, unused-ignore]
    """Used by ``from_pretrained``; one a model.

    Weights are rounded one by one as they are read, on the device where they will be: of weights in full precision
    the device holds one at a time.
    """

    quantization_config: RegistryConfig

    def __init__(self, quantization_config: RegistryConfig, **kwargs: Any) -> None:
        # the caller's own may serve another model, and this one is changed
        super().__init__(copy.deepcopy(quantization_config), **kwargs)
        self.record = LoadingRecord(self.quantization_config, self.quantization_config.format)

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Raise InvalidArgumentError for layers on disk."""
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise InvalidArgumentError(
                "RegistryConfig: device_map places layers on disk, where packed layers cannot be",
                hint="leave more memory to the GPUs and the CPU by max_memory",
            )

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The model's dtype, unchanged."""
        self.record.dtype = dtype
        return dtype

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """True for the weights of the layers to pack."""
        return param_name in self.record.to_pack

    def param_element_size(self, model: Any, param_name: str, param: torch.Tensor) -> float:
        """Bytes an element, by which transformers divides the layers among devices."""
        if not self.param_needs_quantization(model, param_name):
            return float(super().param_element_size(model, param_name, param))
        size = self.quantization_config.group_size
        # a scale and a zero point for each group
        return self.record.format.bits / 8 + (2 * param.element_size() / size if size > 0 else 0.0)

    def get_quantize_ops(self) -> ConversionOps:
        """The operation that packs a weight."""
        return PackWeights(self.record)

    def get_weight_conversions(self) -> list[WeightConverter]:
        """The rules that read packed tensors."""
        if not self.pre_quantized:
            return []
        foreign = self.quantization_config.source is not None
        return [*(read_experts(self.record) if foreign else ()), read_packed(self.record)]

    def update_weight_conversions(self, weight_conversions: list[Any], *args: Any) -> list[Any]:
        """The model's own rules after those for packed tensors, whose names may begin as theirs do.

        Those for experts come before ours for layers, which takes any tensor named "weight" of some formats.
        """
        ours = self.get_weight_conversions()
        first = [each for each in weight_conversions if is_for_experts(each)]
        others = [each for each in weight_conversions if not is_for_experts(each)]
        return [*ours[:-1], *first, *ours[-1:], *others]

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """The dtype that transformers would load a tensor in; None, which keeps the file's, for packed tensors."""
        known: torch.dtype | None = None if is_ours(converter) else super().get_new_dtype(converter, param, dtype)
        return known

    def update_parallel_plan(self, model: Any, plan: dict[str, str]) -> None:
        """Have each rank read those weights as a whole that are rounded or saved so, and take its part of them."""
        if plan is not model.tp_plan or not (self.pre_quantized or needs_whole(self.quantization_config)):
            return
        styles = self.record.to_pack | self.record.expert_parameters
        for name in sorted(styles):
            generic = re.sub(r"\.\d+(?=\.)", ".*", name)
            if generic in plan or generic.rpartition(".")[0] in plan:
                plan[generic] = "replicate"

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **kwargs: Any) -> None:
        config, format_ = self.quantization_config, self.record.format
        check_release(model)
        guard_packed_layers(model)
        if self.pre_quantized and checkpoint_files is not None:
            self.record.files = TensorFiles.of(checkpoint_files)
            if self.record.files is not None:
                self.record.files.check(format_)
        left = self.get_modules_to_not_convert(model, config.modules_to_not_convert, model._keep_in_fp32_modules)
        left += format_.skipped
        layers = {name: layer for name, layer in linear_layers(model) if should_convert_module(name, left)}
        experts = [name for name, _ in expert_modules(model) if should_convert_module(name, left)]
        parameters = [f"{name}.{part}" for name in experts for part in (GATE_UP, DOWN)]
        if self.pre_quantized:
            self.record.to_pack = frozenset(f"{name}.weight" for name in layers)
            self.record.expert_parameters = frozenset(parameters)
            for name, form in config.experts.items():
                put_empty_experts(model, name, form)
            return
        readers = weight_readers(model)
        read = [name for name in layers if name in readers]
        _tell_of("the code around reads the weight", read)
        packed = [f"{name}.weight" for name in layers if name not in readers]
        if config.packs_experts:
            packed += parameters
        else:
            _tell_of(OTHER_EXPERTS, experts)
        self.record.to_pack = frozenset(packed)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        unguard(model)
        check_release(model)
        if mesh_of(model) is not None:
            part_read(model)
        raise_together(_first_fault(self.record.faults), mesh_of(model))
        check_complete(model, self.record)
        for note in self.record.format.notes:
            warnings.warn(f"RegistryConfig: {note}", stacklevel=2)
        if self.pre_quantized:
            # they hold for loading alone: what is saved has the names of packed layers
            model._weight_conversions = [each for each in model._weight_conversions if not is_ours(each)]
        self._describe(model)
        return model

    def _describe(self, model: Any) -> None:
        """Write into the config what the layers are, for ``save_pretrained``."""
        config = self.quantization_config
        layers, experts = _by_own_names(packed_layers(model)), _by_own_names(packed_experts(model))
        if not layers and not experts:
            raise InvalidArgumentError(
                f"RegistryConfig: {type(model).__name__} has no layer to pack",
                hint="layers of the classes nn.Linear and Conv1D are packed, unless modules_to_not_convert names them",
            )
        config.experts = {name: form_of_experts(each) for name, each in experts.items()}
        plain = {name: layer for name, layer in layers.items() if isinstance(layer, PackedLinear)}
        forms = {name: form_of(layer) for name, layer in plain.items()}
        # the dtypes of ScaledLinear and of experts alike
        scaled = [dtype_name(layer.levels.dtype) for layer in layers.values() if isinstance(layer, ScaledLinear)]
        scaled += [each.down.dtype for each in experts.values() if isinstance(each, ScaledExpertsMlp)]
        bits = 8 if scaled else EXPERT_BITS
        most = PackedForm.most_common(forms.values() or [PackedForm(bits, config.group_size)])
        config.bits, config.group_size, config.codebook = most.bits, most.group_size, most.codebook
        config.activations, config.symmetric = most.activations, most.symmetric is not False
        if not plain and scaled:
            config.activations = scaled[0]
        config.modules = {name: form.settings() for name, form in forms.items() if form != most}
        config.source = None
        # the loader's sets and the files are not needed any longer; sizes are still asked for
        self.record = LoadingRecord(config, config.format, self.record.to_pack)

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> Any:
        # save_pretrained leaves a text in the model's config
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        unpack_layers(model, dtype)
        unpack_experts(model, dtype)
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """The model's tensors, contiguous: those of layers that share one product are columns of it."""
        return {name: gathered(tensor).contiguous() for name, tensor in model.state_dict().items()}, {}

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """True: packed tensors are saved as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True: gradients pass through packed layers to adapters before and beside them."""
        return True

    @property
    def is_compileable(self) -> bool:
        """True: packed layers are ops to torch.compile."""
        return True


def _by_own_names(modules: Iterable[tuple[str, Module]]) -> dict[str, Module]:
    """Modules by the names that they have without PEFT's adapters, which move a layer to ``base_layer``."""
    return {name.replace(".base_layer", ""): module for name, module in modules}


def _tell_of(reason: str, layers: list[str]) -> None:
    if layers:
        others = f" and {len(layers) - 1} others are" if len(layers) > 1 else " is"
        warnings.warn(f"RegistryConfig: {layers[0]}{others} not packed: {reason}", stacklevel=2)


def _first_fault(faults: dict[str, RegistryError]) -> RegistryError | None:
    if not faults:
        return None
    first = next(iter(faults.values()))
    others = f" (and {len(faults) - 1} other layers)" if len(faults) > 1 else ""
    told = InvalidArgumentError(f"RegistryConfig: {first.message}{others}", hint=first.hint)
    told.__cause__ = first
    return told
