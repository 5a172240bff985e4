"""DeepSpeed configurations of the kinds that people have: keys and values as published, by kind and source."""

from dataclasses import dataclass, field
from typing import Any

RANKS = 2
GIVEN = {"model_size": "nano"}
HIDDEN = 32
"""Of the model that is trained."""

FP16 = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
AUTO_SIZES = dict.fromkeys(
    ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"), "auto"
)
AUTO_ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
AUTO_WARMUP = {
    "type": "WarmupLR",
    "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
}
AUTO_STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
}
OF_AUTO_STAGE_3 = {
    "zero_stage": 3, "overlap": True, "sub_group_size": 10**9, "bucket_numel": HIDDEN**2,
    "prefetch_bucket_size": 921, "param_persistence_threshold": 320, "max_live_parameters": 10**9,
    "max_reuse_distance": 10**9,
}  # fmt: skip
CPU = {"device": "cpu", "pin_memory": True}
QUIET = {"steps_per_print": 2000, "wall_clock_breakdown": False}


@dataclass(frozen=True)
class Wild:
    """A configuration, whose kind it is, and what is to become of it: `settings`, or a refusal that names a key."""

    source: str
    config: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    refused: str = ""


WILD: dict[str, Wild] = {
    "transformers, stage 2 with offload": Wild(
        "huggingface/transformers, tests/deepspeed/ds_config_zero2.json",
        {
            "fp16": {"enabled": "auto", **FP16},
            "bf16": {"enabled": "auto"},
            "optimizer": AUTO_ADAMW,
            "scheduler": AUTO_WARMUP,
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": CPU,
                "allgather_partitions": True,
                "allgather_bucket_size": 2e8,
                "overlap_comm": True,
                "reduce_scatter": True,
                "reduce_bucket_size": 2e8,
                "contiguous_gradients": True,
            },
            **AUTO_SIZES,
            **QUIET,
        },
        {
            "lr_schedule": "constant", "zero_stage": 2, "offload_optimizer": "cpu", "overlap": True,
            "reduction": "reduce_scatter", "bucket_numel": 200_000_000,
        },
    ),
    "transformers, stage 3 as it was": Wild(
        "huggingface/transformers, tests/deepspeed/ds_config_zero3.json of 2021",
        {
            "fp16": {"enabled": True, **FP16},
            "zero_optimization": {
                **AUTO_STAGE_3,
                "offload_optimizer": CPU,
                "offload_param": CPU,
                "sub_group_size": 1e14,
                "reduce_bucket_size": 0,
                "stage3_prefetch_bucket_size": 0,
                "stage3_param_persistence_threshold": 0,
                "stage3_gather_fp16_weights_on_model_save": True,
            },
            "train_batch_size": 16,
        },
        refused="zero_optimization.reduce_bucket_size is 0; give a whole number of at least 1",
    ),
    "transformers, stage 3": Wild(
        "huggingface/transformers, tests/deepspeed/ds_config_zero3.json",
        {
            "fp16": {"enabled": "auto", **FP16},
            "bf16": {"enabled": "auto"},
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
            },
            "scheduler": {
                "type": "WarmupLR",
                "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500},
            },
            "zero_optimization": {
                **AUTO_STAGE_3,
                "offload_optimizer": CPU,
                "offload_param": CPU,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
            **AUTO_SIZES,
            **QUIET,
        },
        {
            **OF_AUTO_STAGE_3, "lr": 3e-5, "beta1": 0.8, "beta2": 0.999, "eps": 1e-8, "weight_decay": 3e-7,
            "lr_schedule": "constant", "warmup_steps": 500, "warmup_shape": "log",
            "offload_optimizer": "cpu", "offload_param": "cpu",
            "zero3_save_16bit_model": True,
        },
    ),
    "transformers, both on a disk": Wild(
        "the DeepSpeed guide of transformers, ZeRO-3 with NVMe",
        {
            "bf16": {"enabled": True},
            "zero_optimization": {
                **AUTO_STAGE_3,
                "offload_optimizer": {
                    "device": "nvme", "nvme_path": "NVME", "pin_memory": True, "buffer_count": 4, "fast_init": False,
                },
                "offload_param": {
                    "device": "nvme", "nvme_path": "NVME", "pin_memory": True, "buffer_count": 5, "buffer_size": 1e8,
                    "max_in_cpu": 1e9,
                },
                "stage3_gather_16bit_weights_on_model_save": False,
            },
            "aio": {
                "block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False,
                "overlap_events": True,
            },
            **AUTO_SIZES,
        },
        {
            **OF_AUTO_STAGE_3, "bf16": True, "offload_optimizer": "nvme", "offload_param": "nvme",
            "offload_path": "NVME", "buffer_count": 5, "buffer_size": 10**8, "max_in_cpu": 10**9,
            "zero3_save_16bit_model": False,
        },
    ),
    "Lightning, what its strategy makes": Wild(
        "lightning.pytorch.strategies.DeepSpeedStrategy(stage=3, offload_optimizer=True, offload_parameters=True)",
        {
            "activation_checkpointing": {
                "partition_activations": False,
                "cpu_checkpointing": False,
                "contiguous_memory_optimization": False,
                "synchronize_checkpoint_boundary": False,
            },
            "aio": {
                "block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True,
                "thread_count": 1,
            },
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": 3,
                "contiguous_gradients": True,
                "overlap_comm": True,
                "allgather_partitions": True,
                "reduce_scatter": True,
                "allgather_bucket_size": 200_000_000,
                "reduce_bucket_size": 200_000_000,
                "sub_group_size": 1_000_000_000_000,
                "offload_optimizer": {
                    "device": "cpu", "nvme_path": "/local_nvme", "buffer_count": 4, "pin_memory": False,
                },
                "offload_param": {
                    "device": "cpu", "nvme_path": "/local_nvme", "buffer_count": 5, "buffer_size": 100_000_000,
                    "max_in_cpu": 1_000_000_000, "pin_memory": False,
                },
            },
            "train_micro_batch_size_per_gpu": 3,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.0,
            "bf16": {"enabled": True},
        },
        {
            "zero_stage": 3, "overlap": True, "reduction": "reduce_scatter", "bucket_numel": 200_000_000,
            "sub_group_size": 10**12, "offload_optimizer": "cpu", "offload_param": "cpu", "grad_accum_steps": 2,
            "batch_size": 12, "clip_norm": 0.0, "bf16": True,
        },
    ),
    "DeepSpeedExamples, CIFAR": Wild(
        "microsoft/DeepSpeedExamples, training/cifar",
        {
            "train_batch_size": 16,
            "steps_per_print": 2000,
            "optimizer": {
                "type": "Adam",
                "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
            },
            "scheduler": {
                "type": "WarmupLR",
                "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000},
            },
            "gradient_clipping": 1.0,
            "prescale_gradients": False,
            "fp16": {"enabled": True, "fp16_master_weights_and_grads": False, **FP16, "initial_scale_power": 15},
            "wall_clock_breakdown": False,
            "zero_optimization": {
                "stage": 0,
                "allgather_partitions": True,
                "reduce_scatter": True,
                "allgather_bucket_size": 50_000_000,
                "reduce_bucket_size": 50_000_000,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "cpu_offload": False,
            },
        },
        {
            "batch_size": 16, "lr": 0.001, "beta1": 0.8, "beta2": 0.999, "eps": 1e-8, "weight_decay": 3e-7,
            "lr_schedule": "constant", "warmup_steps": 1000, "warmup_shape": "log", "clip_norm": 1.0,
            "fp16": True, **FP16,
            "initial_scale_power": 15, "zero_stage": 0, "reduction": "reduce_scatter", "bucket_numel": 50_000_000,
            "overlap": True,
        },
    ),
    "DeepSpeed-Chat, training": Wild(
        "microsoft/DeepSpeedExamples, applications/DeepSpeed-Chat, get_train_ds_config",
        {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 4,
            "steps_per_print": 10,
            "zero_optimization": {
                "stage": 3,
                "overlap_comm": True,
                "offload_param": {"device": "none"},
                "offload_optimizer": {"device": "none"},
                "stage3_param_persistence_threshold": 1e4,
                "stage3_max_live_parameters": 3e7,
                "stage3_prefetch_bucket_size": 3e7,
                "memory_efficient_linear": False,
            },
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "prescale_gradients": False,
            "wall_clock_breakdown": False,
            "data_types": {"grad_accum_dtype": "fp32"},
            "hybrid_engine": {"enabled": False, "max_out_tokens": 512, "inference_tp_size": 1},
            "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "step1"},
        },
        {
            "batch_size": 16, "grad_accum_steps": 2, "zero_stage": 3, "overlap": True, "offload_param": "none",
            "offload_optimizer": "none", "param_persistence_threshold": 10_000, "max_live_parameters": 30_000_000,
            "prefetch_bucket_size": 30_000_000, "bf16": True, "clip_norm": 1.0, "main_grads_dtype": "fp32",
        },
    ),
    "DeepSpeed-Chat, with its hybrid engine": Wild(
        "the same, enable_hybrid_engine=True",
        {"train_batch_size": 16, "hybrid_engine": {"enabled": True, "max_out_tokens": 512}},
        refused="hybrid_engine is enabled, and zerolab has nothing of the kind: leave it out",
    ),
    "Megatron-DeepSpeed, BLOOM": Wild(
        "bigscience-workshop/Megatron-DeepSpeed, tests/ds_config_bf16.json",
        {
            "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": 16,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 0},
            "bf16": {"enabled": True},
            **QUIET,
        },
        {"batch_size": 16, "grad_accum_steps": 8, "clip_norm": 1.0, "zero_stage": 0, "bf16": True},
    ),
    "Megatron-DeepSpeed, stage 1 with a curriculum": Wild(
        "bigscience-workshop/Megatron-DeepSpeed, tests/ds_config_cl.json",
        {
            "train_batch_size": 16,
            "zero_optimization": {"stage": 1},
            "fp16": {"enabled": True, **FP16},
            "curriculum_learning": {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8},
        },
        refused="curriculum_learning is enabled, and zerolab has nothing of the kind: leave it out; --seq-len",
    ),
    "DeepSpeedExamples, ZeRO-Offload of the first days": Wild(
        "microsoft/DeepSpeedExamples, Megatron-LM/scripts/ds_zero-offload_10B_config.json",
        {
            "train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "steps_per_print": 1,
            "zero_optimization": {
                "stage": 2,
                "cpu_offload": True,
                "contiguous_gradients": True,
                "overlap_comm": True,
                "reduce_bucket_size": 50_000_000,
            },
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0,
            "fp16": {"enabled": True, **FP16},
            "activation_checkpointing": {"partition_activations": True, "contiguous_memory_optimization": True},
            "wall_clock_breakdown": True,
        },
        {
            "batch_size": 8, "grad_accum_steps": 1, "zero_stage": 2, "offload_optimizer": "cpu", "overlap": True,
            "bucket_numel": 50_000_000, "clip_norm": 1.0, "fp16": True, **FP16,
        },
    ),
    "DeepSpeedExamples, 1-bit Adam": Wild(
        "microsoft/DeepSpeedExamples, bing_bert/1-bit_adam",
        {
            "train_batch_size": 4096,
            "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000, "cuda_aware": False}},
        },
        refused='optimizer.type is "OneBitAdam"; give AdamW',
    ),
    "DeepSpeedExamples, autotuning": Wild(
        "microsoft/DeepSpeedExamples, autotuning/hf/dsconfigs/ds_config_tune.json",
        {"train_micro_batch_size_per_gpu": "auto", "autotuning": {"enabled": True, "fast": True}},
        refused="autotuning is enabled, and zerolab has nothing of the kind: leave it out; zerolab plan",
    ),
    "Axolotl, stage 1": Wild(
        "axolotl-ai-cloud/axolotl, deepspeed_configs/zero1.json",
        {
            "zero_optimization": {"stage": 1, "overlap_comm": True},
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto", "auto_cast": False, **FP16, "initial_scale_power": 32},
            **AUTO_SIZES,
            "wall_clock_breakdown": False,
        },
        {"zero_stage": 1, "overlap": True},
    ),
    "Axolotl, stage 3 with parameters on the host": Wild(
        "axolotl-ai-cloud/axolotl, deepspeed_configs/zero3_bf16_cpuoffload_params.json",
        {
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": 3,
                "offload_param": CPU,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "sub_group_size": 0,
                "reduce_bucket_size": "auto",
                "max_live_parameters": 0,
                "max_reuse_distance": 0,
                "gather_16bit_weights_on_model_save": True,
            },
            "bf16": {"enabled": True},
            **AUTO_SIZES,
        },
        refused="zero_optimization.sub_group_size is 0; give a whole number of at least 1",
    ),
    "LLaMA-Factory, stage 3 with offload": Wild(
        "hiyouga/LLaMA-Factory, examples/deepspeed/ds_z3_offload_config.json",
        {
            **AUTO_SIZES,
            "zero_allow_untested_optimizer": True,
            "fp16": {"enabled": "auto", **FP16},
            "bf16": {"enabled": "auto"},
            "zero_optimization": {
                **AUTO_STAGE_3, "overlap_comm": False, "offload_optimizer": CPU, "offload_param": CPU,
                "stage3_gather_16bit_weights_on_model_save": True,
            },
            "comms_config": {"verbose": False},
            "monitor_config": {"enabled": True, "tag": "DeepSpeedMonitor", "csv_monitor": {"enabled": False}},
        },
        {
            **OF_AUTO_STAGE_3, "overlap": False, "offload_optimizer": "cpu", "offload_param": "cpu",
            "zero3_save_16bit_model": True,
        },
    ),
    "LLaVA, stage 3 with offload": Wild(
        "haotian-liu/LLaVA, scripts/zero3_offload.json",
        {
            "fp16": {"enabled": "auto", **FP16},
            "bf16": {"enabled": True},
            "optimizer": AUTO_ADAMW,
            "scheduler": AUTO_WARMUP,
            "zero_optimization": {
                **AUTO_STAGE_3, "offload_optimizer": CPU, "offload_param": CPU,
                "gather_16bit_weights_on_model_save": True,
            },
            **AUTO_SIZES,
            "steps_per_print": 1e5,
            "wall_clock_breakdown": False,
        },
        {
            **OF_AUTO_STAGE_3, "bf16": True, "lr_schedule": "constant", "offload_optimizer": "cpu",
            "offload_param": "cpu", "zero3_save_16bit_model": True,
        },
    ),
    "Dolly, stage 3": Wild(
        "databrickslabs/dolly, config/ds_z3_bf16_config.json",
        {
            "bf16": {"enabled": "auto"},
            "optimizer": AUTO_ADAMW,
            "scheduler": AUTO_WARMUP,
            "zero_optimization": {**AUTO_STAGE_3, "stage3_gather_16bit_weights_on_model_save": True},
            "tensorboard": {"enabled": True, "output_path": "logs", "job_name": "dolly"},
            **AUTO_SIZES,
            **QUIET,
        },
        {**OF_AUTO_STAGE_3, "lr_schedule": "constant", "zero3_save_16bit_model": True},
    ),
    "Accelerate, stage 2 with a decay": Wild(
        "huggingface/accelerate, examples/deepspeed_config_templates/zero_stage2_config.json",
        {
            "fp16": {"enabled": True, **FP16},
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True, "adam_w_mode": True},
            },
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": dict.fromkeys(
                    ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"
                ),
            },
            "zero_optimization": {
                "stage": 2,
                "allgather_partitions": True,
                "allgather_bucket_size": 2e8,
                "overlap_comm": True,
                "reduce_scatter": True,
                "reduce_bucket_size": "auto",
                "contiguous_gradients": True,
            },
            **AUTO_SIZES,
            **QUIET,
        },
        {
            "fp16": True, **FP16, "lr_schedule": "linear", "zero_stage": 2, "overlap": True,
            "reduction": "reduce_scatter", "bucket_numel": HIDDEN**2,
        },
    ),
    "hana, stage 2 with offload": Wild(
        "IDEA-Research/hana, config/deepspeed.py",
        {
            "zero_allow_untested_optimizer": True,
            "scheduler": {
                "type": "WarmupLR",
                "params": {
                    "last_batch_iteration": -1, "warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 10000,
                },
            },
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": CPU,
                "contiguous_gradients": True,
                "overlap_comm": True,
                "allgather_bucket_size": 2e8,
                "reduce_bucket_size": 2e8,
            },
            "fp16": {"enabled": True, **FP16},
            "steps_per_print": 100,
            "train_micro_batch_size_per_gpu": 8,
            "activation_checkpointing": {
                "partition_activations": False, "cpu_checkpointing": False, "number_checkpoints": False,
                "profile": False,
            },
        },
        {
            "lr_schedule": "constant", "lr": 1e-4, "warmup_steps": 10000, "warmup_shape": "log",
            "zero_stage": 2, "offload_optimizer": "cpu",
            "overlap": True, "bucket_numel": 200_000_000, "fp16": True, **FP16, "batch_size": 16,
        },
    ),
    "a stage 2 with its parameters on the host": Wild(
        "of a kind that is common in forums",
        {
            "train_batch_size": 16,
            "zero_optimization": {
                "stage": 2, "offload_optimizer": CPU, "offload_param": CPU, "stage3_prefetch_bucket_size": 1e7,
            },
        },
        refused="parameters can rest on the host at stage 3",
    ),
    "ZeRO++": Wild(
        "DeepSpeed's tutorial on ZeRO++",
        {
            "train_batch_size": 16,
            "zero_optimization": {"stage": 3, "zero_quantized_weights": True, "zero_hpz_partition_size": 16},
        },
        refused="zero_optimization.zero_quantized_weights must be false, not true",
    ),
    "with apex's mixed precision": Wild(
        "of the days of apex: opt_level O1",
        {"train_batch_size": 16, "fp16": {"enabled": False}, "amp": {"enabled": False, "opt_level": "O1"}},
        refused="amp is given, and zerolab has nothing of the kind: DeepSpeed has taken it out, too",
    ),
}  # fmt: skip
