"""zerolab: ZeRO, built piece by piece, small enough to read in an evening."""

__version__ = "0.1.0"
