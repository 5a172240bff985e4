"""Places of states (`places`), the form in which they rest there (`formats`), and the way to a disk and back (`files`,
`lane`, `pipeline`)."""

from zerolab.offload.places import NO_OFFLOAD, TIERS, Offload

__all__ = ["NO_OFFLOAD", "TIERS", "Offload"]
