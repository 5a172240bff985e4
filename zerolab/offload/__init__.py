"""Places of states (`places`), the form in which they rest there (`rest`), and the way from a disk and back."""

from zerolab.offload.places import NOWHERE, TIERS, Offload

__all__ = ["NOWHERE", "TIERS", "Offload"]
