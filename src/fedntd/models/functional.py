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
    """What one client sees in one step."""

    x: Tensor
    y: Tensor
    mask: Tensor | None = None  # True for real samples, where a short batch was padded; None: all are real

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a per-sample value over the real samples."""
        if self.mask is None:
            return value.mean()
        return torch.where(self.mask, value, 0).sum() / self.mask.sum()  # not a product: 0 * NaN is NaN


class Taps(NamedTuple):
    """What goes into a network's last stage and what comes out of it, [B, C, H, W]: at full width, and once more on the
    first part of the channels alone (a slimmable network). FedAlign compares the two."""

    into: Tensor
    out: Tensor
    slim_into: Tensor
    slim_out: Tensor


class Out(NamedTuple):
    """What a network answers to a batch."""

    logits: Tensor
    z: Tensor | None = None  # features: what the last layer sees
    taps: Taps | None = None


class BatchStatNorm(nn.Module):
    """BatchNorm that always uses the statistics of the batch, and only those of its real samples.

    Running statistics are a state of their own that averaging over clients does not treat well; the paper's ResNets
    have none. `mask` reaches this layer as a buffer that `Model` swaps in, so that networks need not hand it down.
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
        """Where `x` has only the first of the channels."""
        return self.normalise(x, self.weight[: x.shape[1]], self.bias[: x.shape[1]])

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.mask is None or self.mask.numel() == 0:
            # not F.batch_norm, which refuses a batch of one sample with one pixel
            return torch.batch_norm(x, weight, bias, None, None, True, 0.0, self.eps, x.is_cuda)
        along = [0, *range(2, x.ndim)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # as in batch_norm: a mean in bf16 has three digits
        per_sample = self.mask.to(wide.dtype).view(-1, *[1] * (x.ndim - 1))
        count = per_sample.sum() * (x[0, 0].numel())
        mean = (wide * per_sample).sum(along, keepdim=True) / count
        variance = ((wide - mean).square() * per_sample).sum(along, keepdim=True) / count
        shape = [1, -1, *[1] * (x.ndim - 2)]
        normal = (wide - mean) * torch.rsqrt(variance + self.eps) * weight.view(shape) + bias.view(shape)
        return normal.to(x.dtype)


class Model:
    """`model(w, batch)` runs the network with weights `w` in the precision asked for; logits come back in that of w."""

    def __init__(self, module: nn.Module, precision: str = "fp32") -> None:
        require(
            isinstance(module, nn.Module),
            f"the model is a {type(module).__name__}, not a torch.nn.Module; model.name must give one",
        )
        self.module = use_batch_statistics(copy.deepcopy(module)).train()  # the caller's own stays as it is
        self.has_dropout = any(has_dropout(m) for m in self.module.modules())
        self.masked = [f"{name}.mask" for name, m in self.module.named_modules() if isinstance(m, BatchStatNorm)]
        self.further_names = further_names(self.module)
        self.compute = {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)
        self.storage = torch.float64 if precision == "fp64" else torch.float32
        self.module.to(self.storage)
        for tensor in self.fixed():  # has to be of the kind that it is computed with
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(self.compute)

    def fixed(self) -> list[Tensor]:
        """What is not trained: it is nowhere else than here."""
        return [*self.module.buffers(), *(p for p in self.module.parameters() if not p.requires_grad)]

    def same_but_for_weights(self, other: "Model") -> bool:
        """Not where each seed draws other buffers or frozen layers."""
        return all(map(torch.equal, self.fixed(), other.fixed()))

    def weights(self) -> Weights:
        """A copy of the module's own weights, to start from; those that want no gradient stay as they are."""
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
        tensors |= {other: tensors[name] for other, name in self.further_names.items() if name in tensors}
        if batch.mask is not None:
            tensors |= dict.fromkeys(self.masked, batch.mask)
        x = batch.x.to(self.compute) if batch.x.is_floating_point() else batch.x  # integers are numbers of something
        # torch's way to tie weights would leave those in the module that a layer with two names is given
        out = functional_call(self.module, tensors, (x,), tie_weights=False)
        if not isinstance(out, Out):
            require(
                isinstance(out, Tensor),
                f"the model gives a {type(out).__name__}; forward must return logits [samples, classes], or fedntd.Out",
            )
            out = Out(out)
        # losses are computed in full precision, whatever the network ran in
        return Out(
            out.logits.to(self.storage),
            None if out.z is None else out.z.to(self.storage),
            None if out.taps is None else Taps(*(tap.to(self.storage) for tap in out.taps)),
        )

    def cast(self, w: Weights) -> Weights:
        """The weights in the precision that the network runs in."""
        return {name: leaf.to(self.compute) for name, leaf in w.items()}

    def frozen(self, w: Weights, batch: Batch) -> Out:
        """A forward pass that is only looked at, by a teacher or in a test: dropout is off."""
        if not self.has_dropout:
            return self(w, batch)
        self.module.eval()
        try:
            return self(w, batch)
        finally:
            self.module.train()

    def copy(self) -> "Model":
        """A copy for another thread: running a module with other weights changes it for the moment."""
        return copy.deepcopy(self)

    def check(self, batch: Batch, classes: int) -> None:
        """Run one batch, so that a network that does not fit the data is told at once, in one sentence. One that draws
        in `forward`, without a layer for it, is found out as well; and one that changes its buffers there: they would
        depend on which worker trained which clients, and no checkpoint has them."""
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        try:
            with torch.no_grad(), torch.random.fork_rng([batch.x.device] if batch.x.is_cuda else []):
                before = random_state(batch.x)
                self(self.weights(), batch)
                self.has_dropout |= random_state(batch.x) != before
                before = random_state(batch.x)
                logits = self.frozen(self.weights(), batch).logits
                even = random_state(batch.x) == before
        except FedntdError:
            raise
        except Exception as error:  # whatever a network of the user's own does with samples it is not made for
            samples = f"{'' if batch.x.is_floating_point() else 'integer '}samples of shape {list(batch.x.shape[1:])}"
            raise FedntdError(f"the model cannot take {samples}: {reason(error)}") from error
        require(
            all(map(torch.equal, buffers, self.module.buffers())),
            "the model changes its buffers in forward, so that no run could be repeated; leave out what does so, such "
            "as spectral norms, or track_running_stats=True of nn.InstanceNorm2d",
        )
        require(
            even,
            "the model draws random numbers in tests, too; use nn.Dropout, or F.dropout(..., training=self.training)",
        )
        require(
            logits.shape == (len(batch.x), classes),
            f"the model gives outputs of shape {list(logits.shape)} for {len(batch.x)} samples of {classes} classes; "
            f"it must give [samples, classes]",
        )

    def obstacle(self, batch: Batch) -> str:
        """What keeps several such networks from being run in one step; nothing if they can be."""
        if self.has_dropout:
            return "it has dropout, whose draws the loop could not repeat"

        def one(w: Weights, x: Tensor, y: Tensor) -> Tensor:
            return self(w, Batch(x, y, torch.ones_like(y, dtype=torch.bool))).logits

        try:
            with torch.no_grad():
                vmap(one)({name: leaf[None] for name, leaf in self.weights().items()}, batch.x[None], batch.y[None])
        except RuntimeError as error:  # an operation without a rule for it (recurrent layers), a branch on values
            return str(error).splitlines()[0].split(". ")[0]
        return ""


def further_names(module: nn.Module) -> dict[str, str]:
    """Of weights that several layers share: each further name, and the first. A layer with two names has one here."""
    names: dict[nn.Parameter, list[str]] = {}
    for prefix, layer in module.named_modules():
        for name, p in layer.named_parameters(prefix, recurse=False, remove_duplicate=False):
            names.setdefault(p, []).append(name)
    return {other: first for first, *others in names.values() for other in others}


def random_state(near: Tensor) -> bytes:
    """Of the generator of a tensor's device: another one after a draw."""
    state = torch.cuda.get_rng_state(near.device) if near.is_cuda else torch.get_rng_state()
    return state.numpy().tobytes()


def has_dropout(module: nn.Module) -> bool:
    """Whether the module itself, not one in it, leaves something out by chance."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _DropoutNd) and module.p > 0


def use_batch_statistics(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm by one without running statistics, keeping its scale and shift: the very parameters, so
    that frozen ones stay frozen. One that is used in several places stays one."""
    replaced = {}
    for old in module.modules():
        if isinstance(old, _BatchNorm):
            replaced[old] = norm = BatchStatNorm(old.num_features, old.eps, old.affine)
            if old.affine:
                norm.weight, norm.bias = old.weight, old.bias
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() would leave out the second name of a child
            if isinstance(child, _BatchNorm):
                parent._modules[name] = replaced[child]
    return replaced[module] if isinstance(module, _BatchNorm) else module
