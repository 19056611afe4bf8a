"""Put values into a model that was cut into shares while it had none."""

from collections import defaultdict

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ftrecipes.parallel.engine import Sharded

_WRAPPER = "_checkpoint_wrapped_module."


class Places:
    """Where each parameter of a sharded model is, tied ones in all their places.

    Made by each rank for itself after `shard`, before anything is put. Names are those of the
    model, with or without the wrappers of `recompute`. No method is a collective.
    """

    def __init__(self, model: nn.Module, engine: Sharded) -> None:
        self.share, self.home = engine.share, engine.home
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        same = defaultdict(list)
        for path, module in model.named_modules():
            for key, parameter in module.named_parameters(recurse=False):
                same[parameter].append((module, key))
                name = f"{path}.{key}" if path else key
                self._owners[name.replace(_WRAPPER, "")] = same[parameter]

    def put(self, name: str, local: Tensor, *, requires_grad: bool | None = None) -> None:
        """Make `local` this rank's rows of the parameter `name` (as `Share.rows` cuts them).

        `requires_grad` None keeps what the parameter has. Raises KeyError for a name that the model
        does not have, ValueError when dtype or shape are not those of the rows.
        """
        owners = self._owners[name.replace(_WRAPPER, "")]
        module, key = owners[0]
        old = module._parameters[key]  # the attribute may be the weight that it stands for
        here = old.to_local()
        if (local.shape, local.dtype) != (here.shape, here.dtype):
            raise ValueError(
                f"{name}: rows {tuple(local.shape)} {local.dtype} were put in the place of "
                f"{tuple(here.shape)} {here.dtype}"
            )
        value = DTensor.from_local(
            local.detach(),
            old.device_mesh,
            old.placements,
            run_check=False,
            shape=old.shape,
            stride=old.stride(),
        ).to(self.home)  # from_local moves to the device of the mesh
        trained = old.requires_grad if requires_grad is None else requires_grad
        parameter = nn.Parameter(value, requires_grad=trained)
        for module, key in owners:
            module._parameters[key].requires_grad_(trained)
            module.load_state_dict({key: parameter}, strict=False, assign=True)

    def put_whole(self, name: str, whole: Tensor) -> None:
        """As `put`, with this rank's rows of a tensor that every rank has."""
        rows = self.share.rows(whole.shape[0])
        self.put(name, whole[rows.start : rows.stop].clone())
