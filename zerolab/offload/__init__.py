"""Places of states (`places`), their form there (`formats`), and the way to a disk and back (`files`, `lane`)."""

from zerolab.offload.places import NO_OFFLOAD, TIERS, Offload

__all__ = ["NO_OFFLOAD", "TIERS", "Offload"]
