"""Small models of transformers, from configurations: nothing is downloaded. Imported where transformers is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from model_zoo import Brought, seeded
from torch import Tensor, nn

ROWS, LENGTH, VOCABULARY = 4, 8, 64

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 32}
GROUPED = {**SIZES, "num_key_value_heads": 1}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0}
GPT = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **ENDS}
BART = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
BART |= {"decoder_start_token_id": 1, **ENDS}
SEEN = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SEEN |= {"image_size": 16, "patch_size": 8}
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, **ENDS}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
DEEPSEEK = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1}
DEEPSEEK |= {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8}
DEEPSEEK |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, **SIZES, "num_key_value_heads": 2}


def tokens(step: int) -> Tensor:
    return torch.randint(2, VOCABULARY, (ROWS, LENGTH), generator=seeded(step))


def text(step: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(step), "labels": tokens(step)}


def pairs(step: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(step), "labels": tokens(step + 50)}


def kinds(step: int) -> Tensor:
    return torch.randint(0, 2, (ROWS,), generator=seeded(step))


def sentences(step: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(step), "labels": kinds(step)}


def images(step: int, size: int = 16) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(ROWS, 3, size, size, generator=seeded(step)), "labels": kinds(step)}


def spectra(step: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(ROWS, 8, 32, generator=seeded(step)), "labels": tokens(step + 50)}


def sounds(step: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(ROWS, 800, generator=seeded(step)), "labels": kinds(step)}


def captions(step: int) -> dict[str, Any]:
    return {"input_ids": tokens(step), "pixel_values": images(step)["pixel_values"], "return_loss": True}


def own_loss(call: Callable[..., Any], batch: Any) -> Tensor:
    """As users have it: model(input_ids=..., labels=...).loss."""
    return call(**batch).loss


def without_dropout(config: Any) -> Any:
    """Ranks draw other numbers than one process does."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PreTrainedConfig):
            without_dropout(value)
        elif isinstance(value, float) and "drop" in name:
            setattr(config, name, 0.0)
    return config


def build(kind: str, config: str, prepare: Callable[[Any], Any] | None, options: dict[str, Any]) -> nn.Module:
    model = getattr(transformers, kind)(without_dropout(getattr(transformers, config)(**options))).train()
    if prepare is not None:
        prepare(model)
    return model


def of(kind: str, batch: Callable[[int], Any], config: str = "", by_parts: bool = False, **options: Any) -> Brought:
    """A model of class `kind`, whose configuration's class has the name before its "For"."""
    config = config or kind.split("For")[0].split("LMHead")[0] + "Config"
    return Brought(partial(build, kind, config, None, options), batch, own_loss, by_parts)


def recomputing(brought: Brought, reentrant: bool) -> Brought:
    """The same after model.gradient_checkpointing_enable()."""

    def prepare(model: Any) -> None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})

    kind, config, _, options = brought.build.args  # type: ignore[attr-defined]
    return Brought(partial(build, kind, config, prepare, options), brought.batch, brought.loss, brought.by_parts)


CLIP = {
    "text_config": {**SIZES, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1},
    "vision_config": SEEN,
    "projection_dim": 8,
}

ASKED: dict[str, Brought] = {
    "LLaMA": of("LlamaForCausalLM", text, **GROUPED),
    "GPT-2": of("GPT2LMHeadModel", text, **GPT),
    "BERT": of("BertForMaskedLM", text, **SIZES),
    "T5": of("T5ForConditionalGeneration", pairs, **T5),
    "ViT": of("ViTForImageClassification", images, **SEEN),
    "Mixtral": of("MixtralForCausalLM", text, num_local_experts=24, num_experts_per_tok=1, **GROUPED),
}
"""Those that are tried with gradient checkpointing, too."""

HUGGING_FACE: dict[str, Brought] = {
    **ASKED,
    "ALBERT": of("AlbertForMaskedLM", text, embedding_size=8, **SIZES),
    "Bart": of("BartForConditionalGeneration", pairs, **BART, max_position_embeddings=32),
    "BERT classifier": of("BertForSequenceClassification", sentences, **SIZES),
    "Bloom": of("BloomForCausalLM", text, vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, **ENDS),
    "CLIP": of("CLIPModel", captions, "CLIPConfig", by_parts=True, **CLIP),
    "DeBERTa": of("DebertaV2ForMaskedLM", text, relative_attention=True, pos_att_type=["c2p", "p2c"], **SIZES),
    "DeepSeek-V3": of("DeepseekV3ForCausalLM", text, **DEEPSEEK),
    "DINOv2": of("Dinov2ForImageClassification", images, **{**SEEN, "mlp_ratio": 2}),
    "DistilBERT": of(
        *("DistilBertForSequenceClassification", sentences),
        **{"vocab_size": VOCABULARY, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
    ),
    "Falcon": of("FalconForCausalLM", text, **SIZES, **ENDS),
    "Gemma 3": of("Gemma3ForCausalLM", text, "Gemma3TextConfig", head_dim=8, **GROUPED),
    "GPT-NeoX": of("GPTNeoXForCausalLM", text, **SIZES),
    "GPT-OSS": of("GptOssForCausalLM", text, head_dim=8, num_local_experts=4, num_experts_per_tok=2, **GROUPED),
    "Mamba": of("MambaForCausalLM", text, **MAMBA),
    "ModernBERT": of("ModernBertForMaskedLM", text, cls_token_id=1, sep_token_id=1, **ENDS, **SIZES),
    "OPT": of("OPTForCausalLM", text, ffn_dim=24, word_embed_proj_dim=16, **SIZES, **ENDS),
    "Phi-3": of("Phi3ForCausalLM", text, **ENDS, **GROUPED),
    "Qwen2": of("Qwen2ForCausalLM", text, **GROUPED),
    "Qwen3": of("Qwen3ForCausalLM", text, head_dim=8, **GROUPED),
    "Qwen3-MoE": of("Qwen3MoeForCausalLM", text, head_dim=8, **EXPERTS, **GROUPED),
    "ResNet": of(
        *("ResNetForImageClassification", partial(images, size=32)),
        **{"by_parts": True, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "RoBERTa": of("RobertaForMaskedLM", text, **SIZES),
    "Swin": of(
        *("SwinForImageClassification", images),
        **{"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "Switch Transformers": of(
        *("SwitchTransformersForConditionalGeneration", pairs),
        **{
            "router_jitter_noise": 0.0,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            **T5,
        },
    ),
    "wav2vec 2.0": of(
        *("Wav2Vec2ForSequenceClassification", sounds),
        **{"conv_dim": (8, 8, 8), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3},
        **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, **SIZES},
        apply_spec_augment=False,
    ),
    "Whisper": of(
        *("WhisperForConditionalGeneration", spectra),
        **{"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16, **BART},
    ),
}
