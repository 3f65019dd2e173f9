"""The formats by ``quant_method``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .....errors import InvalidArgumentError
from .awq import AwqFormat
from .compressed_tensors import CompressedTensorsFormat
from .gptq import GptqFormat
from .layer_format import LayerFormat
from .own import OwnFormat

METHOD = OwnFormat.method
_FORMATS: dict[str, Callable[[Mapping[str, Any]], LayerFormat]] = {
    format_.method: format_.of for format_ in (GptqFormat, AwqFormat, CompressedTensorsFormat, OwnFormat)
}
FOREIGN = tuple(method for method in _FORMATS if method != METHOD)
"""The methods of other libraries, as config.json names them."""


def method_of(settings: Any) -> str:
    """``quant_method`` of a quantization_config, which is a dict or an object; "" if it has none."""
    given = settings.get("quant_method") if isinstance(settings, Mapping) else getattr(settings, "quant_method", None)
    # transformers' own methods are members of an enumeration of texts
    return str(getattr(given, "value", given) or "")


def checkpoint_format(settings: Mapping[str, Any]) -> LayerFormat:
    """The format that a quantization_config describes; InvalidArgumentError if it is not supported."""
    method = method_of(settings)
    if method not in _FORMATS:
        raise InvalidArgumentError(
            f"RegistryConfig: quant_method={method!r} in the checkpoint's config.json",
            hint=f"packed layers are made of {', '.join(_FORMATS)}",
        )
    return _FORMATS[method](settings)
