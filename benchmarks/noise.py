"""Seconds to draw the noise of one release: ours, and OpenDP's for comparison (pip install opendp).

python benchmarks/noise.py [weights]
"""

import platform
import sys
import time

from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features

from fedntd.flower.privacy import DEVIATION, discrete_gaussian

weights = int(sys.argv[1]) if len(sys.argv) > 1 else 2_156_490
some = min(weights, 50_000)  # as OpenDP is slow, and its time grows with the number
print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {weights:,} weights")

discrete_gaussian(1)  # the table is made once
started = time.perf_counter()
discrete_gaussian(weights)
print(f"ours:   {time.perf_counter() - started:.2f} s")

enable_features("contrib")
space = vector_domain(atom_domain(T="i64"), size=some), l2_distance(T="f64")
theirs = make_gaussian(*space, scale=float(DEVIATION))
started = time.perf_counter()
theirs([0] * some)
print(f"OpenDP: {(time.perf_counter() - started) * weights / some:.2f} s (from {some:,})")
