"""Tensor parallelism: one device's share of heads, widths and vocabulary."""

from __future__ import annotations

from ...errors import InvalidArgumentError
from .keys import Keys


class DeviceShare:
    """The share of one of ``devices``. ``name`` is the config's in messages."""

    def __init__(self, devices: int, name: str) -> None:
        self._devices, self._name = devices, name

    def of(self, size: int, what: str) -> int:
        """One device's part of a size. Raises InvalidArgumentError for one that the devices do not divide."""
        if size % self._devices:
            raise InvalidArgumentError(
                f"{self._name}: {what} is {size}, which {self._devices} devices do not divide",
                hint="give --tensor-parallel another number",
            )
        return size // self._devices

    def rounded_up(self, size: int) -> int:
        """One device's part of a size that is padded to divide."""
        return -(-size // self._devices)

    def kv_heads(self, keys: Keys, heads: int) -> int:
        """One device's heads of keys: where there are fewer than devices, several devices hold one."""
        count = keys.size("num_key_value_heads", "n_head_kv", default=heads)
        if heads % count:
            raise InvalidArgumentError(
                f"{self._name}: num_attention_heads is {heads}, num_key_value_heads {count}",
                hint="expected a number of key and value heads that divides num_attention_heads",
            )
        if count < self._devices and self._devices % count == 0:
            return 1
        return self.of(count, "num_key_value_heads")
