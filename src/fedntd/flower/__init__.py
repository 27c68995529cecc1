"""Real federations through Flower: `fedntd flower new DIR` writes an app that uses this package."""

from typing import TYPE_CHECKING

from fedntd.support.lazy import lazy

if TYPE_CHECKING:
    from fedntd.flower.privacy import epsilon
    from fedntd.flower.site import Samples, Site, dealt, held_out

__all__ = [
    "Samples",
    "Site",
    "dealt",
    "epsilon",
    "held_out",
]

__getattr__ = lazy(
    __name__,
    {
        "Samples": "site",
        "Site": "site",
        "dealt": "site",
        "epsilon": "privacy",
        "held_out": "site",
    },
)
