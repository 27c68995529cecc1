"""Clipping and differential privacy: what one site can change in the global weights, and what they tell about it.

The sites' updates are clipped, rounded to whole steps of a grid and summed as integers; integer noise is added, and
only then does the sum become floating-point numbers again. So a released number is a function of an integer alone. The
low bits of floating-point noise would tell something of what it was added to (Mironov, CCS 2012).

The noise is a discrete Gaussian (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS
2020), drawn from the system's source of randomness, bit for bit. No seed, no generator, no state between two calls.
"""

import math
import os
import secrets
from bisect import bisect_right
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedntd import tree
from fedntd.flower.collect import All, RunningMean
from fedntd.tree import Tree, Weights

CLIP_RANGE = 1e-30, 1e30  # in which steps of the grid are ordinary float64 numbers
NOISE_RANGE = 1e-3, 1e3  # in which sums of a million sites are far from the ends of int64, and rounding from the noise

COARSE, FINE = 2**8, 2**22
DEVIATION = COARSE * FINE  # of the noise, in steps of the grid: far more than rounding to whole steps can change
BLOCK = 2**17  # numbers drawn at once, so that they stay in the processor's cache


# --- the discrete Gaussian --------------------------------------------------------------------------------------


def discrete_gaussian(count: int, coarse: int = COARSE, fine: int = FINE) -> NDArray[np.int64]:
    """Integers z with probabilities proportional to exp(-z^2 / (2 s^2)), s = coarse * fine; both are powers of two.

    As in Ducas et al. ("Lattice Signatures and Bimodal Gaussians", CRYPTO 2013): x >= 0 from the half-Gaussian of
    deviation `coarse` (a table), y uniform below `fine`, and x * fine + y is kept with probability
    exp(-y (y + 2 x fine) / (2 s^2)). With powers of two that exponent is a whole number over a power of two, so
    uniform bits decide it exactly (von Neumann's alternating series).

    The table alone is rounded, to 256 bits: a draw is within 2^-240 of its law in total variation. That adds
    (1 + e^epsilon) 2^-240 to delta for each released number: less than 2^-120 for 2^47 numbers and an epsilon of 50.
    """
    assert coarse >= 32, "below, exponents can be larger than 1"
    assert coarse * fine <= DEVIATION, "above, they do not fit into 64 bits"
    found, missing = [np.empty(0, np.int64)], count
    while missing:
        found.append(accepted(min(missing, BLOCK), coarse, fine))
        missing -= len(found[-1])
    return np.concatenate(found)


def accepted(count: int, coarse: int, fine: int) -> NDArray[np.int64]:
    """Of so many candidates, those that are kept: nearly all."""
    x = half_gaussian(count, coarse)
    bits = random_words(count)
    y, negative = (bits & np.uint64(fine - 1)).view(np.int64), bits >> np.uint64(63) == 1
    # kept with probability exp(-over / 2^under)
    over, under = y * (y + 2 * fine * x), 2 * (coarse * fine).bit_length() - 1
    in_doubt = random_words(count) >> np.uint64(64 - under) < over.view(np.uint64)
    keep = ~in_doubt
    for i in np.flatnonzero(in_doubt):  # one in several hundred
        keep[i] = stays(int(over[i]), under)
    z = x * fine + y
    keep &= (z != 0) | ~negative  # else 0 would come twice as often, as 0 and as -0
    return np.where(negative, -z, z)[keep]


def stays(over: int, under: int) -> bool:
    """True with probability exp(-over / 2^under), given that the first term was drawn and fell below.

    Terms 1, 2, 3, ... fall below with probability over / (term * 2^under); the first that does not is odd with the
    probability that is wanted.
    """
    term = 2
    while secrets.randbelow(term << under) < over:
        term += 1
    return term % 2 == 1


def half_gaussian(count: int, deviation: int) -> NDArray[np.int64]:
    """Integers x >= 0 with probabilities proportional to exp(-x^2 / (2 deviation^2))."""
    thresholds, leading = cumulative(deviation)
    words = random_words(count)
    x = np.searchsorted(leading, words)
    # the first 64 bits of 256 decide, but where they equal a threshold's
    for i in np.flatnonzero(leading[np.minimum(x, len(leading) - 1)] == words):
        x[i] = bisect_right(thresholds, int(words[i]) << 192 | secrets.randbits(192))
    return x


@cache
def cumulative(deviation: int) -> tuple[list[int], NDArray[np.uint64]]:
    """P(X <= x) for x = 0, 1, ..., as whole numbers of 2^-256, and their first 64 bits.

    Beyond 20 deviations there is less than 2^-280.
    """
    with localcontext(prec=120):
        weight = total = Decimal(1)
        ratio, factor = ((Decimal(-n) / (2 * deviation**2)).exp() for n in (1, 2))
        sums = []
        for _ in range(20 * deviation):
            sums.append(total)
            weight, ratio = weight * ratio, ratio * factor
            total += weight
        thresholds = [int(some / total * 2**256) for some in sums]
    return thresholds, np.array([threshold >> 192 for threshold in thresholds], np.uint64)


def random_words(count: int) -> NDArray[np.uint64]:
    """From the operating system, which keeps at least 256 bits of state that no process can see."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


# --- sums of clipped updates ------------------------------------------------------------------------------------


def length(delta: Weights) -> float:
    return math.sqrt(float(tree.sqnorm(tree.map(Tensor.double, delta))))


def clipped(delta: Weights, clip: float) -> Weights:
    """The update, shortened to the norm `clip` if it is longer."""
    return tree.scale(min(1.0, clip / max(length(delta), clip)), delta)


def in_steps(delta: Weights, clip: float, step: float) -> Weights:
    """The clipped update in whole steps of the grid, rounded towards zero: never longer than clip / step.

    float64 may get the length wrong by 2^-21 of it, for up to 2^32 weights; so it is clipped at a little less.
    """
    factor = min(1.0, clip * (1 - 2**-20) / max(length(delta), clip / 2))
    return tree.map(lambda leaf: (leaf.double() * factor / step).trunc().to(torch.int64), delta)


class Clipped:
    """Uploads with clipped updates, without noise: what one site can change is bounded, and nothing is hidden."""

    def __init__(self, uploads: RunningMean | All, clip: float) -> None:
        self.inner, self.clip = uploads, clip
        self.sites = self.short = 0

    def add(self, site: int, up: Tree, weight: float) -> None:
        self.sites += 1
        self.short += length(up["delta"]) <= self.clip
        self.inner.add(site, {"delta": clipped(up["delta"], self.clip)}, weight)

    def uploads(self) -> tuple[dict, Tensor]:
        return self.inner.uploads()

    def share_short(self) -> float:
        """Of the updates, how many were not longer than `clip`."""
        return self.short / self.sites


class NoisyMean:
    """The mean of clipped updates with noise, for one release; `noise` is its deviation on their sum, over `clip`.

    The divisor is the size of the cohort, whoever answers: so one site's upload changes nothing but its own term of the
    sum.

    With `adaptive` the number of updates that were not longer than `clip` is released too, out of the same budget
    (Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, theorem 1). Each site counts
    as 1/2 or -1/2, with noise `count_noise`, and there is a little more noise on the updates, so that
    1 / noise^2 = 1 / update_noise^2 + 1 / (2 count_noise)^2.
    """

    def __init__(self, like: Tree, clip: float, noise: float, cohort: int, adaptive: bool) -> None:
        self.like, self.clip, self.cohort, self.adaptive = like["delta"], clip, cohort, adaptive
        # the paper's cohort / 20; in small cohorts more, which would leave nothing for the updates
        self.count_noise = max(cohort / 20, 2 * noise)
        update_noise = (noise**-2 - (2 * self.count_noise) ** -2) ** -0.5 if adaptive else noise
        self.step = update_noise * clip / DEVIATION
        self.count_step = self.count_noise / DEVIATION
        self.sum = tree.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.int64), self.like)
        self.count = 0  # in steps, as the sum is
        self.noisy_count: float | None = None

    def add(self, site: int, up: Tree, weight: float) -> None:
        tree.map(Tensor.add_, self.sum, in_steps(up["delta"], self.clip, self.step))
        half = math.floor(0.5 / self.count_step)
        self.count += half if length(up["delta"]) <= self.clip else -half

    def uploads(self) -> tuple[dict, Tensor]:
        """With fresh noise, so that each call is a release."""

        def released(total: Tensor, leaf: Tensor) -> Tensor:
            noise = torch.from_numpy(discrete_gaussian(total.numel())).view(total.shape).to(total.device)
            return ((total + noise).double() * (self.step / self.cohort)).to(leaf.dtype)[None]

        if self.adaptive:
            self.noisy_count = (self.count + int(discrete_gaussian(1)[0])) * self.count_step
        return {"delta": tree.map(released, self.sum, self.like)}, torch.ones(1)

    def share_short(self) -> float:
        """As released; a site that sent nothing counts as half."""
        assert self.noisy_count is not None, "released together with the updates"
        return self.noisy_count / self.cohort + 0.5


def next_clip(clip: float, quantile: float, share_short: float) -> float:
    """So that in time a share of `quantile` of the updates is not clipped; the rate is that of Andrew et al.

    Shares below 0 and above 1, which noise can give, count as 0 and 1: in small cohorts the clip would jump.

    >>> round(next_clip(2.0, quantile=0.5, share_short=1.0), 4)
    1.8097
    """
    followed = clip * math.exp(-0.2 * (min(max(share_short, 0.0), 1.0) - quantile))
    return min(max(followed, CLIP_RANGE[0]), CLIP_RANGE[1])


# --- what is spent ----------------------------------------------------------------------------------------------

ORDERS = [*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024]  # as in dp-accounting


def epsilon(noise: float, releases: int, delta: float) -> float:
    """What a site has spent that took part in all releases, where adding or removing the site is what must not show.

    A release of discrete Gaussian noise has a Rényi divergence of at most alpha / (2 noise^2) at order alpha (Canonne,
    Kamath and Steinke, theorem 14): the same as a continuous one (Mironov, CSF 2017), so this holds for the noise that
    is really added. The divergences of releases add up, also where a release depends on those before, and are turned
    into (epsilon, delta) by their proposition 12. The result is that of dp-accounting's RdpAccountant, and never below
    the exact epsilon of Gaussian noise. That a site takes part in some rounds only is not counted in its favour, since
    the cohorts come from a seed that others may know.

    >>> round(epsilon(noise=4.0, releases=100, delta=1e-5), 2)
    14.13
    """
    bounds = (
        releases * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS
    )
    return max(0.0, min(bounds))
