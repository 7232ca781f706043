"""What an optimiser has neither in its groups nor by its parameters: nothing takes it to the devices."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from netsplit.errors import ConfigError

__all__ = ["check_hooks", "check_keys"]


def check_hooks() -> None:
    """Refuse those that torch calls for every optimiser of this process: the devices' are in others.

    Raises:
        ConfigError: there are some.
    """
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        raise ConfigError(
            "optimizer: a hook on the steps of all optimizers of this process "
            "(torch.optim.optimizer.register_optimizer_step_…_hook) is not called on the devices, which make "
            "their own: register it on the optimizer in the function that makes it."
        )


def check_keys(optimizer: Optimizer) -> None:
    """Refuse state of no parameter: checkpoints and changes of plan go by parameters.

    Raises:
        ConfigError: it names the key.
    """
    keys = [key for key in optimizer.state if not isinstance(key, Tensor)]
    if keys:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} keeps state under {keys[0]!r}, which is no parameter: "
            "keep it in its groups (self.param_groups), or by parameter in self.state[parameter]."
        )
