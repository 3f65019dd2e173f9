"""Samplers of Optuna over the candidates of a joint space, for the tuner and for any other study."""

from ..joint_space import JointSpace
from .distinct import DistinctSampler
from .registry_sampler import RegistrySampler
from .slow_pruner import SlowPruner
from .snapped import SnappedSampler

__all__ = ["DistinctSampler", "JointSpace", "RegistrySampler", "SlowPruner", "SnappedSampler"]
