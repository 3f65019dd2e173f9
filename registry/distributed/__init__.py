"""Jobs of several ranks: ``registry.distributed.agree()`` checks that all of them run the same winners.

``KERNEL_REGISTRY_AGREE=1`` has the first call of each rank check that, see ``first_call``.
"""

from .agreement import agree, identity

__all__ = ["agree", "identity"]
