"""Our models in Hugging Face's folders and back, without transformers, which test_models_hf.py asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zerolab import ZeroEngine, launch
from zerolab.apps.interop.huggingface import (
    export,
    from_huggingface,
    from_pretrained,
    import_tensors,
    load_folder,
    rows,
    save_folder,
    to_huggingface,
)
from zerolab.collectives import Collectives
from zerolab.errors import CheckpointError, InputError
from zerolab.memory import Tracker
from zerolab.models import GPT2, SIZES, Config, GPT2Config, LanguageModel, Llama, LlamaConfig, config_of

LLAMA, GPT = config_of("llama", "nano"), config_of("gpt2", "nano")
assert isinstance(LLAMA, LlamaConfig) and isinstance(GPT, GPT2Config)
CONFIGS: dict[str, Config] = {
    "llama-nano": LLAMA,
    "llama-nano-untied": replace(LLAMA, tied_head=False, rope_theta=1e4, norm_eps=1e-6),
    "llama-one-kv-head": replace(LLAMA, kv_heads=1, layers=1),
    "mistral": replace(LLAMA, head_size=16),
    "qwen2": replace(LLAMA, qkv_bias=True),
    "qwen3": replace(LLAMA, head_size=16, qk_norm=True, tied_head=False),
    "gpt2-nano": GPT,
    "gpt2-nano-bias": replace(GPT, bias=True),
    "gpt2-nano-untied": replace(GPT, tied_head=False, bias=True, norm_eps=1e-6),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))


def model_of(config: Config) -> LanguageModel:
    """With no zero and no one among its values: at their first values biases and norms would hide mistakes."""
    model = Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def exported(model: LanguageModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in export(model.config, model.state_dict().__getitem__)}


def save(path: Path, model: LanguageModel, **options: Any) -> Path:
    save_folder(path, model.config, export(model.config, model.state_dict().__getitem__), **options)
    return path


def assert_same(model: LanguageModel, other: LanguageModel) -> None:
    ours, others = dict(model.named_parameters()), dict(other.named_parameters())
    assert list(ours) == list(others) and model.config == other.config
    for name, parameter in ours.items():
        assert parameter.dtype == others[name].dtype and torch.equal(parameter, others[name]), name


# Names and layouts


@pytest.mark.parametrize("kind", SIZES)
def test_every_size_of_ours_has_a_config_of_theirs_and_comes_back(kind: str) -> None:
    for config in SIZES[kind].values():
        for tied in (True, False):
            ours = replace(config, tied_head=tied, max_seq_len=77)
            assert from_huggingface(json.loads(json.dumps(to_huggingface(ours)))) == ours


@each_config
def test_rows_name_each_parameter_once_and_in_the_models_order(config: Config) -> None:
    model, found = model_of(config), rows(config)
    named = {row.ours: row.shape for row in found if row.ours is not None}
    assert list(named.items()) == [(name, tuple(tensor.shape)) for name, tensor in model.named_parameters()]
    assert len({row.theirs for row in found}) == len(found)
    without = [row for row in found if row.ours is None]
    lacks = isinstance(config, GPT2Config) and not config.bias
    assert len(without) == (6 * config.layers + 1 if lacks else 0)
    assert all(row.theirs.endswith(".bias") and len(row.shape) == 1 for row in without)


@each_config
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_comes_back_from_their_names_bit_by_bit(config: Config, dtype: torch.dtype) -> None:
    model = model_of(config).to(dtype)
    theirs = exported(model)
    back = dict(import_tensors(config, theirs))
    assert list(back) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], parameter), name
    assert {tensor.dtype for tensor in theirs.values()} == {dtype}


def test_what_is_imported_has_memory_of_its_own() -> None:
    theirs = {name: tensor.contiguous() for name, tensor in exported(model_of(GPT)).items()}
    back = dict(import_tensors(GPT, theirs))
    for tensor in theirs.values():
        tensor.fill_(float("nan"))
    assert all(tensor.is_contiguous() and not tensor.isnan().any() for tensor in back.values())


def test_matrices_of_gpt2_are_transposed_and_its_tables_are_not() -> None:
    model = model_of(GPT)
    ours, theirs = model.state_dict(), exported(model)
    assert torch.equal(theirs["transformer.h.1.attn.c_attn.weight"], ours["blocks.1.attention.qkv_proj.weight"].t())
    assert torch.equal(theirs["transformer.h.0.mlp.c_proj.weight"], ours["blocks.0.ffn.down_proj.weight"].t())
    assert torch.equal(theirs["transformer.wpe.weight"], ours["embedding.positions.weight"])
    assert theirs["transformer.h.0.attn.c_attn.bias"].tolist() == [0.0] * 96


def test_export_asks_for_one_tensor_at_a_time_in_the_models_order() -> None:
    model, asked = model_of(GPT), []

    def ours(name: str) -> Tensor:
        asked.append(name)
        return model.state_dict()[name]

    for count, (_, row) in enumerate(zip(export(GPT, ours), rows(GPT), strict=True), start=1):
        assert len(asked) == sum(other.ours is not None for other in rows(GPT)[:count]), row
    assert asked == [name for name, _ in model.named_parameters()]


def test_names_without_their_prefix_and_old_buffers_are_understood() -> None:
    """The first GPT-2 checkpoints name no "transformer." and hold their masks; LLaMA's held frequencies."""
    for config, buffer in ((GPT, "h.0.attn.bias"), (LLAMA, "layers.0.self_attn.rotary_emb.inv_freq")):
        model = model_of(config)
        theirs = {re.sub(r"^(transformer|model)\.", "", name): tensor for name, tensor in exported(model).items()}
        back = dict(import_tensors(config, theirs | {buffer: torch.ones(1, 1, 8, 8)}))
        assert all(torch.equal(back[name], parameter) for name, parameter in model.named_parameters())


def bad_shape(theirs: dict[str, Tensor]) -> None:
    theirs["model.norm.weight"] = torch.ones(31)


def whole_numbers(theirs: dict[str, Tensor]) -> None:
    theirs["model.norm.weight"] = torch.ones(32, dtype=torch.int64)


def missing(theirs: dict[str, Tensor]) -> None:
    del theirs["model.layers.1.mlp.up_proj.weight"]


def unknown(theirs: dict[str, Tensor]) -> None:
    theirs["score.weight"] = torch.ones(2, 32)


def other_head(theirs: dict[str, Tensor]) -> None:
    theirs["lm_head.weight"] = torch.ones(256, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bad_shape, r"tensor model\.norm\.weight is torch\.float32 of shape \[31\], but .* \[32\]"),
        (whole_numbers, r"tensor model\.norm\.weight is torch\.int64"),
        (missing, r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        (unknown, r"a tensor score\.weight, for which our model has no place"),
        (other_head, r"lm_head\.weight differs from the embedding.* tie_word_embeddings"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_named(change: Callable[[dict], None], message: str) -> None:
    theirs = exported(model_of(LLAMA))
    change(theirs)
    with pytest.raises(CheckpointError, match=message):
        dict(import_tensors(LLAMA, theirs))


def test_a_tied_head_that_is_stored_beside_its_table_is_taken() -> None:
    theirs = exported(model_of(LLAMA))
    back = dict(import_tensors(LLAMA, theirs | {"lm_head.weight": theirs["model.embed_tokens.weight"]}))
    assert "head.lm_head.weight" not in back


def test_biases_that_our_model_lacks_are_dropped_only_where_they_are_zero() -> None:
    theirs = exported(model_of(GPT))
    theirs["transformer.h.1.ln_2.bias"][3] = 1e-6
    with pytest.raises(CheckpointError, match=r"transformer\.h\.1\.ln_2\.bias is not zero.* set zerolab_bias to true"):
        dict(import_tensors(GPT, theirs))
    back = dict(import_tensors(replace(GPT, bias=True), theirs))
    assert back["blocks.1.ffn_norm.bias"][3] == torch.tensor(1e-6)


def test_export_refuses_a_tensor_of_another_model_by_its_name() -> None:
    ours = model_of(replace(LLAMA, ffn_dim=64)).state_dict()
    with pytest.raises(CheckpointError, match=r"blocks\.0\.ffn\.gate_proj\.weight .* shape \[64, 32\].* \[96, 32\]"):
        list(export(LLAMA, ours.__getitem__))


# config.json


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (LLAMA, {"model_type": "gemma"}, "model_type is 'gemma'"),
        (LLAMA, {"model_type": None}, "model_type is None"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (LLAMA, {"attention_bias": True}, "attention_bias is True"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias is True"),
        (LLAMA, {"sliding_window": 0}, "sliding_window is 0"),
        (LLAMA, {"head_dim": 15}, "head_size is 15"),
        (LLAMA, {"head_dim": 0}, "head_dim is 0"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling is {'rope_type': 'llama3'"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is {'type': 'linear'"),
        (LLAMA, {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters is {'rope_type': 'yarn'"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters is {'partial_rotary"),
        (LLAMA, {"rope_parameters": None, "rope_theta": "big"}, "rope_theta is 'big', but must be a positive number"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        (LLAMA, {"hidden_size": None}, "hidden_size is missing"),
        (LLAMA, {"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5, but must be a whole number"),
        (LLAMA, {"num_key_value_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', but must be true or false"),
        (GPT, {"activation_function": "relu"}, "activation_function is 'relu'"),
        (GPT, {"n_inner": 64}, "n_inner is 64, but is 4 · n_embd, 128"),
        (GPT, {"scale_attn_weights": False}, "scale_attn_weights is False"),
        (GPT, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT, {"add_cross_attention": True}, "add_cross_attention is True"),
        (GPT, {"n_head": 0}, "n_head is 0"),
    ],
)
def test_what_our_models_cannot_do_is_refused_by_its_field(config: Config, change: dict, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        from_huggingface(to_huggingface(config) | change)


def test_fields_that_are_absent_have_the_defaults_of_transformers() -> None:
    old = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "rope_scaling": None,
    }  # fmt: skip
    assert from_huggingface(old) == LlamaConfig(64, 32, 2, 4, 4, 48, 2048, 10_000.0, 1e-6, tied_head=False)
    assert from_huggingface(old | {"rope_parameters": {"rope_theta": 5e5}}) == replace(
        from_huggingface(old), rope_theta=5e5
    )
    assert from_huggingface(old | {"rope_theta": 5e5}) == replace(from_huggingface(old), rope_theta=5e5)
    first = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_ctx": 1024}
    assert from_huggingface(first) == GPT2Config(64, 32, 2, 4, 1024, 1e-5, bias=True, tied_head=True)


def test_relatives_of_the_llama_have_defaults_of_their_own_and_a_window_is_the_longest_sequence() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 32, "head_dim": 2}
    plain = LlamaConfig(64, 32, 2, 32, 32, 48, 32_768, 10_000.0, 1e-6, tied_head=False, head_size=2)
    read = {kind: from_huggingface({"model_type": kind, **sizes}) for kind in ("mistral", "qwen2", "qwen3")}
    assert read == {
        "mistral": replace(plain, kv_heads=8, max_seq_len=4096),
        "qwen2": replace(plain, qkv_bias=True),
        "qwen3": replace(plain, qk_norm=True),
    }
    sizes |= {"head_dim": None, "num_key_value_heads": None, "sliding_window": None, "hidden_size": 64}
    assert from_huggingface({"model_type": "qwen3", **sizes}).head_dim == 128
    said = {"model_type": "mistral", **sizes}
    assert from_huggingface(said) == replace(plain, dim=64, max_seq_len=131_072, head_size=None)
    for window in ({"sliding_window": 16}, {"sliding_window": 16, "use_sliding_window": True}):
        for kind, used in (("mistral", True), ("qwen2", len(window) == 2), ("qwen3", len(window) == 2)):
            assert (from_huggingface({**said, "model_type": kind, **window}).max_seq_len == 16) == used


# Folders


@each_config
def test_a_folder_gives_back_the_model_that_was_saved(config: Config, tmp_path: Path) -> None:
    model = model_of(config)
    folder = save(tmp_path / "out", model)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    back = from_pretrained(folder)
    assert_same(model, back)
    tokens = torch.randint(config.vocab_size, (2, 16))
    assert torch.equal(model(tokens), back(tokens))
    back(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in back.parameters())
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("limit", [1, 20_000])
def test_shards_are_no_larger_than_was_said_and_the_index_finds_each_tensor(limit: int, tmp_path: Path) -> None:
    model = model_of(replace(LLAMA, tied_head=False))
    folder = save(tmp_path / "out", model, max_shard_bytes=limit)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in shards] == [
        f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)
    ]
    theirs, seen, sizes = exported(model), {}, []
    for path in shards:
        held = load_file(path)
        assert len(held) == 1 or sum(tensor.nbytes for tensor in held.values()) <= limit
        assert all(index["weight_map"][name] == path.name for name in held)
        sizes.append(sum(tensor.nbytes for tensor in held.values()))
        seen |= held
    assert all(size + following > limit for size, following in pairwise(sizes)), "two shards would fit into one"
    assert seen.keys() == theirs.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in theirs.values())
    assert_same(model, from_pretrained(folder))


def test_saving_holds_one_shard_and_the_tensor_that_comes(tmp_path: Path) -> None:
    config, limit = config_of("llama", "tiny"), 2_000_000
    largest = max(torch.Size(row.shape).numel() for row in rows(config)) * 4
    with Tracker() as tracker:
        save_folder(
            tmp_path / "out",
            config,
            ((row.theirs, torch.zeros(row.their_shape)) for row in rows(config)),
            max_shard_bytes=limit,
        )
    whole = sum(torch.Size(row.shape).numel() for row in rows(config)) * 4
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 5
    assert limit <= sum(tracker.peak.values()) <= limit + largest < whole / 4


def test_a_tensor_may_be_overwritten_once_the_next_is_asked_for(tmp_path: Path) -> None:
    """As a unit that is gathered into the memory of the one before."""
    model = model_of(LLAMA)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in export(LLAMA, model_of(LLAMA).state_dict().__getitem__):
            yield name, tensor
            tensor.fill_(float("nan"))

    save_folder(tmp_path / "out", LLAMA, tensors())
    assert_same(model, from_pretrained(tmp_path / "out"))


def test_dtypes_are_those_asked_for_when_saving_and_when_loading(tmp_path: Path) -> None:
    model = model_of(GPT)
    folder = save(tmp_path / "out", model, dtype=torch.bfloat16)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert_same(model_of(GPT).to(torch.bfloat16), from_pretrained(folder))
    wide = from_pretrained(folder, dtype=torch.float32, checkpoint=True)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32} and wide.checkpoint


def test_a_tensor_is_read_when_it_is_asked_for_to_memory_of_its_own(tmp_path: Path) -> None:
    model = model_of(LLAMA)
    folder = save(tmp_path / "out", model)
    config, tensors = load_folder(folder)
    assert config == LLAMA and list(tensors) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        tensor = tensors[name]
        assert torch.equal(tensor, parameter) and tensor.untyped_storage().nbytes() == tensor.nbytes


def test_loading_holds_one_model_and_one_tensor(tmp_path: Path) -> None:
    model = model_of(config_of("llama", "tiny"))
    folder = save(tmp_path / "out", model, max_shard_bytes=2_000_000)
    sizes = [parameter.nbytes for parameter in model.parameters()]
    with Tracker() as tracker:
        back = from_pretrained(folder)
    assert sum(tensor.nbytes for tensor in back.parameters()) == sum(sizes)
    assert sum(tracker.peak.values()) <= sum(sizes) + max(sizes)


@pytest.mark.parametrize("stage", [0, 3])
def test_an_engine_fills_a_model_from_a_folder_unit_by_unit(stage: int, tmp_path: Path) -> None:
    model, folder = model_of(GPT), tmp_path / "out"
    save(folder, model)
    tokens = torch.arange(32).reshape(2, 16)

    def loss(comm: Collectives) -> float:
        config, tensors = load_folder(folder)
        assert isinstance(config, GPT2Config)
        with torch.device("meta"):
            empty = GPT2(config)
        names = {module: name for name, module in empty.named_modules()}

        @torch.no_grad()
        def init(module: torch.nn.Module) -> None:
            for name, parameter in module.named_parameters(names[module], recurse=False):
                if name in tensors:  # a tied head is not
                    parameter.copy_(tensors[name])

        engine = ZeroEngine(empty, comm, stage=stage, lr=0.1, init=init)
        return engine(tokens, tokens).item()

    assert launch(loss, ranks=2, world="lockstep") == [model(tokens, tokens).item()] * 2


def empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "model-1.safetensors"}}')


def shard_outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def no_map(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")


def tensor_missing(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (empty, "has neither model.safetensors nor model.safetensors.index.json; a pickle .*save_pretrained"),
        (no_config, r"config\.json cannot be read"),
        (no_json, r"config\.json cannot be read"),
        (a_list, r"config\.json cannot be read .*no JSON object"),
        (cut_off, r"model\.safetensors cannot be read"),
        (shard_missing, r"model-1\.safetensors cannot be read"),
        (shard_outside, r"out/model\.safetensors cannot be read"),
        (no_map, r"no tensor model\.embed_tokens\.weight"),
        (tensor_missing, r"no tensor model\.norm\.weight"),
    ],
)
def test_a_folder_that_cannot_be_read_says_which_file(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "out", model_of(LLAMA))
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(folder)


def test_a_dtype_of_whole_numbers_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dtype is torch\.int64"):
        save(tmp_path / "out", model_of(LLAMA), dtype=torch.int64)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_text("precious")
    with pytest.raises(InputError, match="is there already"):
        save(tmp_path / "out", model_of(LLAMA))
    assert (tmp_path / "out" / "model.safetensors").read_text() == "precious"
    (tmp_path / "out" / "model.safetensors").unlink()
    assert_same(model_of(LLAMA), from_pretrained(save(tmp_path / "out", model_of(LLAMA))))


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/out could not be written .*name another folder"):
        save(tmp_path / "file" / "out", model_of(LLAMA))


SMALLEST = LlamaConfig(8, dim=8, layers=1, heads=1, kv_heads=1, ffn_dim=8)


@pytest.mark.parametrize(
    ("config", "limit", "room", "file"),
    [(LLAMA, 10**9, 50_000, "model.safetensors"), (SMALLEST, 1, 700, "model.safetensors.index.json")],
    ids=["shard", "index"],
)
def test_a_disk_that_is_full_leaves_nothing_behind(
    config: LlamaConfig, limit: int, room: int, file: str, tmp_path: Path
) -> None:
    resource = pytest.importorskip("resource", reason="this system limits no file's size")
    model, fits = model_of(config), tmp_path / "fits"
    sizes = {path.name: path.stat().st_size for path in save(fits, model, max_shard_bytes=limit).iterdir()}
    assert [name for name, size in sizes.items() if size > room and name != "config.json"] == [file]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        with pytest.raises(CheckpointError, match=r"could not be written .*make room"):
            save(tmp_path / "out", model, max_shard_bytes=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [fits]


def test_what_the_tensors_source_raises_is_passed_on_as_it_is(tmp_path: Path) -> None:
    def ours(name: str) -> Tensor:
        raise KeyError(name)

    with pytest.raises(KeyError, match=r"embedding\.weight"):
        save_folder(tmp_path / "out", LLAMA, export(LLAMA, ours))
    assert list(tmp_path.iterdir()) == []
