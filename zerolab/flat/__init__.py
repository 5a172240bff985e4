"""Flat buffers: their geometry (`layout`, integers only) and the views that put parameters on them (`views`)."""

from zerolab.flat.layout import (
    ALIGN,
    BucketPlan,
    Layout,
    Piece,
    Segment,
    Slot,
    chunk_bounds,
    chunk_sizes,
    lay_out,
    split_by_size,
)

__all__ = [
    "ALIGN",
    "BucketPlan",
    "Layout",
    "Piece",
    "Segment",
    "Slot",
    "chunk_bounds",
    "chunk_sizes",
    "lay_out",
    "split_by_size",
]
