"""Flat buffers: their layout (`layout.py`, integers only) and the views that put parameters on them (`views.py`)."""

from zerolab.flat.layout import ALIGN, BucketPlan, Layout, Segment, chunk_bounds, chunk_sizes, lay_out, split_by_size

__all__ = ["ALIGN", "BucketPlan", "Layout", "Segment", "chunk_bounds", "chunk_sizes", "lay_out", "split_by_size"]
