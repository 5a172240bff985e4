"""What each exercise is worth: the check says so when all holds. A test compares it with the notebooks' metadata."""

from __future__ import annotations

POINTS: dict[str, dict[str, int]] = {
    "00_start_here": {"state_bytes": 2, "choose_stage": 1, "most_parameters": 2, "name_the_peak": 2, "fewest_ranks": 2},
    "01_ring_collectives": {
        "chunk_bounds": 1,
        "ring_reduce_scatter": 3,
        "ring_all_gather": 2,
        "ring_all_reduce": 2,
        "ring_bytes": 1,
        "mended_broadcast": 1,
    },
    "02_flat_buffers": {
        "lay_out": 2,
        "owned": 2,
        "flatten": 2,
        "average_gradients": 2,
        "reduce_overlapped": 3,
        "culprit": 2,
    },
    "03_zero_1": {
        "whole_tensors": 1,
        "train_sharded": 2,
        "step_overlapped": 3,
        "train_grouped": 3,
        "MendedOptimizer": 3,
        "step_bytes": 1,
    },
    "04_zero_2": {
        "shards_in_time": 3,
        "in_flight": 3,
        "accumulate": 2,
        "clip_": 2,
        "sent_bytes": 1,
        "MendedBackward": 2,
    },
    "05_zero_3": {
        "forward": 2,
        "sharded_linear": 4,
        "prefetched": 3,
        "Persistent": 2,
        "step_bytes": 2,
        "explain_trace": 1,
    },
    "06_mixed_precision": {
        "nearest": 3,
        "train_mixed": 3,
        "agreed_overflow": 2,
        "LossScale": 1,
        "mean_gradient": 2,
        "mended_step": 3,
        "state_bytes": 2,
    },
    "07_offloading": {
        "tier_bytes": 2,
        "host_step": 3,
        "sub_groups": 2,
        "overlapped_walk": 2,
        "MendedStep": 3,
    },
    "07b_when_it_pays": {"best_place": 3},
    "08_checkpoints": {
        "plan_reads": 2,
        "atomic_save": 3,
        "ResumableData": 2,
        "MendedRun": 2,
        "checkpoint_bytes": 2,
    },
    "09_cost_and_scale": {
        "fit_link": 2,
        "step_seconds": 2,
        "best_bucket": 2,
        "hidden": 3,
        "hierarchical_all_reduce": 3,
        "where_time_goes": 2,
    },
}
