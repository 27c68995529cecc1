"""A model as a function (weights, batch) -> Out, made from any nn.Module."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedntd.errors import FedntdError, reason, require
from fedntd.tree import Weights


class Batch(NamedTuple):
    """A client's samples in one step."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None  # False for samples that pad a short batch; None: all samples are real

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a per-sample value over the real samples."""
        if self.mask is None:
            return value.mean()
        return torch.where(self.mask, value, 0).sum() / self.mask.sum()  # not a product: 0 * NaN is NaN


class Taps(NamedTuple):
    """The inputs and outputs of a network's last stage, [B, C, H, W], at full width and with only the first channels.

    FedAlign compares the two in a slimmable network.
    """

    into: Tensor
    out: Tensor
    slim_into: Tensor
    slim_out: Tensor


class Out(NamedTuple):
    """The output of a network for a batch."""

    logits: Tensor
    z: Tensor | None = None  # features: the input of the last layer
    taps: Taps | None = None


class BatchStatNorm(nn.Module):
    """BatchNorm that always uses the statistics of the batch, computed from its real samples only.

    There are no running statistics, which are a state that does not average well over clients; the paper's ResNets have
    none either. `Model` passes the mask to this layer as a buffer, so that networks need not pass it on.
    """

    mask: Tensor | None

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=affine)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=affine)
        self.register_buffer("mask", torch.empty(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.weight, self.bias)

    def slim(self, x: Tensor) -> Tensor:
        """Normalise an `x` that has only the first channels."""
        return self.normalise(x, self.weight[: x.shape[1]], self.bias[: x.shape[1]])

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.mask is None or self.mask.numel() == 0:
            # not F.batch_norm, which refuses a batch of one sample with one pixel
            return torch.batch_norm(x, weight, bias, None, None, True, 0.0, self.eps, x.is_cuda)
        along = [0, *range(2, x.ndim)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # as in batch_norm: bf16 has only three digits
        per_sample = self.mask.to(wide.dtype).view(-1, *[1] * (x.ndim - 1))
        count = per_sample.sum() * (x[0, 0].numel())
        mean = (wide * per_sample).sum(along, keepdim=True) / count
        variance = ((wide - mean).square() * per_sample).sum(along, keepdim=True) / count
        shape = [1, -1, *[1] * (x.ndim - 2)]
        normal = (wide - mean) * torch.rsqrt(variance + self.eps) * weight.view(shape) + bias.view(shape)
        return normal.to(x.dtype)


class Model:
    """A network as a function: `model(w, batch)` runs it with weights `w` and returns an `Out`.

    The network runs in `precision`. Weights and outputs are float32, or float64 with "fp64".
    """

    def __init__(self, module: nn.Module, precision: str = "fp32") -> None:
        require(
            isinstance(module, nn.Module),
            f"the model is a {type(module).__name__}, not a torch.nn.Module; model.name must give one",
        )
        self.module = use_batch_statistics(copy.deepcopy(module)).train()  # the caller's module is not changed
        self.has_dropout = any(has_dropout(m) for m in self.module.modules())
        self.masked = [f"{name}.mask" for name, m in self.module.named_modules() if isinstance(m, BatchStatNorm)]
        self.aliases = aliases(self.module)
        self.compute = {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)
        self.storage = torch.float64 if precision == "fp64" else torch.float32
        self.module.to(self.storage)
        for tensor in self.fixed():  # these are not cast in each forward pass, as the weights are
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(self.compute)

    def fixed(self) -> list[Tensor]:
        """Buffers and frozen parameters. They are not among the weights, and exist only in the module."""
        return [*self.module.buffers(), *(p for p in self.module.parameters() if not p.requires_grad)]

    def same_but_for_weights(self, other: "Model") -> bool:
        """Whether both networks have the same buffers and frozen parameters. These may be drawn from the seed."""
        return all(map(torch.equal, self.fixed(), other.fixed()))

    def weights(self) -> Weights:
        """A copy of the module's trainable parameters, as initial weights."""
        parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        weights = {name: p.detach().clone().contiguous() for name, p in parameters.items()}
        require(bool(weights), "the model has no parameters to train")
        for name, w in weights.items():
            require(
                "/" not in name, f"the model's weights '{name}' have a / in their name, which checkpoints cannot keep"
            )
            require(bool(w.isfinite().all()), f"the model's initial weights '{name}' are not finite")
        return weights

    def __call__(self, w: Weights, batch: Batch) -> Out:
        tensors = self.cast(w)
        tensors |= {alias: tensors[name] for alias, name in self.aliases.items() if name in tensors}
        if batch.mask is not None:
            tensors |= dict.fromkeys(self.masked, batch.mask)
        x = batch.x.to(self.compute) if batch.x.is_floating_point() else batch.x  # integers, such as tokens, stay
        # with tie_weights=True, these weights would stay in a layer that is registered under two names
        out = functional_call(self.module, tensors, (x,), tie_weights=False)
        if not isinstance(out, Out):
            require(
                isinstance(out, Tensor),
                f"the model gives a {type(out).__name__}; forward must return logits [samples, classes], or fedntd.Out",
            )
            out = Out(out)
        # losses are computed in full precision
        return Out(
            out.logits.to(self.storage),
            None if out.z is None else out.z.to(self.storage),
            None if out.taps is None else Taps(*(tap.to(self.storage) for tap in out.taps)),
        )

    def cast(self, w: Weights) -> Weights:
        """The weights in the precision that the network runs in."""
        return {name: leaf.to(self.compute) for name, leaf in w.items()}

    def frozen(self, w: Weights, batch: Batch) -> Out:
        """A forward pass without dropout, for teachers and tests."""
        if not self.has_dropout:
            return self(w, batch)
        self.module.eval()
        try:
            return self(w, batch)
        finally:
            self.module.train()

    def copy(self) -> "Model":
        """A copy for another thread. Running a module with other weights changes it temporarily."""
        return copy.deepcopy(self)

    def check(self, batch: Batch, classes: int) -> None:
        """Run one batch, and raise `FedntdError` if the network does not fit the data.

        Also finds networks that draw random numbers in `forward` without a dropout layer, and those that change their
        buffers. Changed buffers would depend on which worker trains which clients, and are in no checkpoint.
        """
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        try:
            with torch.no_grad(), torch.random.fork_rng([batch.x.device] if batch.x.is_cuda else []):
                before = random_state(batch.x)
                self(self.weights(), batch)
                self.has_dropout |= random_state(batch.x) != before
                before = random_state(batch.x)
                logits = self.frozen(self.weights(), batch).logits
                deterministic = random_state(batch.x) == before
        except FedntdError:
            raise
        except Exception as error:  # a user's network may raise anything
            samples = f"{'' if batch.x.is_floating_point() else 'integer '}samples of shape {list(batch.x.shape[1:])}"
            raise FedntdError(f"the model cannot take {samples}: {reason(error)}") from error
        require(
            all(map(torch.equal, buffers, self.module.buffers())),
            "the model changes its buffers in forward, so that no run could be repeated; leave out what does so, such "
            "as spectral norms, or track_running_stats=True of nn.InstanceNorm2d",
        )
        require(
            deterministic,
            "the model draws random numbers in tests, too; use nn.Dropout, or F.dropout(..., training=self.training)",
        )
        require(
            logits.shape == (len(batch.x), classes),
            f"the model gives outputs of shape {list(logits.shape)} for {len(batch.x)} samples of {classes} classes; "
            f"it must give [samples, classes]",
        )

    def obstacle(self, batch: Batch) -> str:
        """The reason why the network cannot be vectorised over clients; empty if it can."""
        if self.has_dropout:
            return "it has dropout, whose draws the loop could not repeat"

        def run(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            return self(w, Batch(x, y, torch.ones_like(y, dtype=torch.bool))).logits

        try:
            with torch.no_grad():
                vmap(run)({name: leaf[None] for name, leaf in self.weights().items()}, batch.x[None], batch.y[None])
        except RuntimeError as error:  # an operation without a vmap rule (recurrent layers), a branch on values
            return str(error).splitlines()[0].split(". ")[0]
        return ""


def aliases(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that several layers share, with the first name of each.

    A layer that is registered twice counts once.
    """
    names: dict[nn.Parameter, list[str]] = {}
    for prefix, layer in module.named_modules():
        for name, p in layer.named_parameters(prefix, recurse=False, remove_duplicate=False):
            names.setdefault(p, []).append(name)
    return {alias: first for first, *others in names.values() for alias in others}


def random_state(near: Tensor) -> bytes:
    """The state of the generator on a tensor's device. It changes with every draw."""
    state = torch.cuda.get_rng_state(near.device) if near.is_cuda else torch.get_rng_state()
    return state.numpy().tobytes()


def has_dropout(module: nn.Module) -> bool:
    """Whether the module itself, apart from its submodules, applies dropout."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _DropoutNd) and module.p > 0


def use_batch_statistics(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm by one without running statistics.

    It keeps the same parameters, so that frozen ones stay frozen. A layer that is used in several places stays shared.
    """
    replaced = {}
    for old in module.modules():
        if isinstance(old, _BatchNorm):
            replaced[old] = norm = BatchStatNorm(old.num_features, old.eps, old.affine)
            if old.affine:
                norm.weight, norm.bias = old.weight, old.bias
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() would skip the second name of a child
            if isinstance(child, _BatchNorm):
                parent._modules[name] = replaced[child]
    return replaced[module] if isinstance(module, _BatchNorm) else module
