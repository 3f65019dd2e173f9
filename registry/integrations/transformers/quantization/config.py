"""RegistryConfig: how a model's linear layers are packed, as transformers' ``quantization_config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from transformers.quantizers.auto import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from ....errors import InvalidArgumentError
from ....nn.scaled_linear import DTYPES
from ....packed import BITS, CODEBOOKS, GROUP_SIZES, ZeroKind
from ....problem import dtype_name
from .checkpoints import FOREIGN, METHOD, LayerFormat, checkpoint_format, method_of

EXPERT_BITS = 4
"""Bits of packed experts."""
OTHER_EXPERTS = "experts are in 4 bits without a codebook, or in 8 beside activations alike"
"""Why other formats leave experts."""
_PAIRS = tuple([first, second] for first in get_args(ZeroKind) for second in get_args(ZeroKind))


@register_quantization_config(METHOD)
class RegistryConfig(QuantizationConfigMixin):  # type: ignore[misc, unused-ignore]
    """Linear layers as ``registry.nn.PackedLinear``, rounded by ``registry.quantize``; or ScaledLinear, PackedA8Linear.

    bits, group_size, symmetric, codebook   as ``registry.quantize`` has them; group_size -1 is one scale a column
    activations   None: they stay in the model's dtype. "float8_e4m3fn" or "int8", with bits=8: ScaledLinear, whose
                  activations and weights have this dtype, with a scale for each token and each output, and experts
                  alike; nothing else of the above is used. With bits=4: PackedA8Linear, a packed weight and a scale for
                  each token
    modules_to_not_convert  names, ends of names or regular expressions of layers to leave as they are; None: the
                            output embeddings and layers of tied weights, as transformers leaves out. With a list those
                            are packed too, if it does not name them
    modules   of a saved checkpoint: bits, group_size and codebook of each layer that differs from the others
    experts   of a saved checkpoint, for each layer's experts: group_size and the two kinds of zero points (gate_up,
              down); for those in 8 bits activations, the dtype of these and of the weights
    source    of a checkpoint that another library packed: its own quantization_config
    """

    def __init__(
        self,
        bits: int = 4,
        group_size: int = 128,
        symmetric: bool = False,
        codebook: str | None = None,
        activations: str | None = None,
        modules_to_not_convert: list[str] | None = None,
        modules: Mapping[str, Mapping[str, Any]] | None = None,
        experts: Mapping[str, Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> None:
        self.quant_method = METHOD  # type: ignore[assignment, unused-ignore]
        self.bits, self.group_size, self.symmetric, self.codebook = bits, group_size, symmetric, codebook
        self.modules_to_not_convert = modules_to_not_convert
        self.modules = _settings_by_name("modules", modules)
        self.activations = activations
        self.experts = _settings_by_name("experts", experts)
        source = others.pop("source", None)
        if source is not None and not isinstance(source, Mapping):
            raise InvalidArgumentError(
                f"RegistryConfig: source={source!r}", hint="expected the quantization_config of another library, a dict"
            )
        self.source = None if source is None else dict(source)
        others = {name: value for name, value in others.items() if (name, value) != ("quant_method", METHOD)}
        if others:
            raise InvalidArgumentError(
                f"RegistryConfig: {', '.join(f'{name}={value!r}' for name, value in others.items())}",
                hint=f"expected {', '.join(name for name in vars(self) if name not in ('source', 'quant_method'))}",
            )
        self._check()

    @classmethod
    def of_checkpoint(cls, settings: Any, modules_to_not_convert: list[str] | None = None) -> RegistryConfig:
        """The config that loads a checkpoint which another library packed, from its own quantization_config.

        settings  the dict in its config.json, or transformers' object of it
        Raises InvalidArgumentError for a format or a combination of settings that cannot be loaded.
        """
        plain = dict(settings) if isinstance(settings, Mapping) else settings.to_dict()
        plain["quant_method"] = method_of(settings)
        bits = checkpoint_format(plain).bits
        return cls(bits, source=plain, modules_to_not_convert=modules_to_not_convert)

    @property
    def format(self) -> LayerFormat:
        """The format of the checkpoint that is loaded with this config."""
        return checkpoint_format(self.source or self.to_dict())

    @property
    def rounded_to(self) -> str | None:
        """The dtype of weights and activations alike, of ScaledLinear; None for packed weights."""
        return self.activations if self.bits == 8 else None

    @property
    def packs_experts(self) -> bool:
        """True if experts have a form in this format: in 4 bits without a codebook, or 8 beside activations alike."""
        return self.rounded_to is not None or (self.bits == EXPERT_BITS and self.codebook is None)

    def to_dict(self) -> dict[str, Any]:
        """The values as config.json holds them, without what is not given."""
        given = super().to_dict().items()
        return {name: value for name, value in given if value is not None and value != {}}

    def _check(self) -> None:
        _one_of("bits", self.bits, BITS)
        _one_of("group_size", self.group_size, (-1, *GROUP_SIZES))
        for name, form in self.experts.items():
            if "activations" in form:
                _one_of(f"experts[{name!r}].activations", form["activations"], tuple(map(dtype_name, DTYPES)))
                continue
            _one_of(f"experts[{name!r}].group_size", form.get("group_size"), (-1, *GROUP_SIZES))
            _one_of(f"experts[{name!r}].zeros", form.get("zeros"), _PAIRS)
        _one_of("symmetric", self.symmetric, (False, True))
        _one_of("codebook", self.codebook, (None, *CODEBOOKS))
        if self.codebook is not None and self.bits != 4:
            raise InvalidArgumentError(
                f"RegistryConfig: bits={self.bits}, but codebook={self.codebook!r} has levels for 4 bits"
            )
        _one_of("activations", self.activations, (None, *map(dtype_name, DTYPES)))
        if self.activations is not None and (self.bits not in (4, 8) or self.codebook is not None):
            kind = f"bits={self.bits}" if self.codebook is None else f"codebook={self.codebook!r}"
            raise InvalidArgumentError(
                f"RegistryConfig: {kind} beside activations={self.activations!r}",
                hint="beside activations in 8 bits weights are of 8 or 4: bits=8 or bits=4",
            )
        names = self.modules_to_not_convert
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise InvalidArgumentError(
                f"RegistryConfig: modules_to_not_convert={names!r}", hint="expected a list of names of modules"
            )
        if self.source is not None and method_of(self.source) not in FOREIGN:
            raise InvalidArgumentError(
                f"RegistryConfig: source has quant_method={method_of(self.source)!r}",
                hint=f"expected the quantization_config of one of {', '.join(FOREIGN)}",
            )


def _settings_by_name(name: str, given: object) -> dict[str, dict[str, Any]]:
    """A copy of a config's settings of layers or experts; raises InvalidArgumentError for what is none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(form, Mapping) for form in given.values()):
        raise InvalidArgumentError(
            f"RegistryConfig: {name}={given!r}",
            hint="expected settings by a module's name, as save_pretrained writes them",
        )
    return {key: dict(form) for key, form in given.items()}


def _one_of(name: str, value: object, supported: tuple[object, ...]) -> None:
    # True is no number of bits
    if not any(type(value) is type(each) and value == each for each in supported):
        raise InvalidArgumentError(
            f"RegistryConfig: {name}={value!r}", hint=f"expected one of {', '.join(map(repr, supported))}"
        )
