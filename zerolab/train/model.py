"""What a run trains, and on which tokens: a named model, or one of given sizes, with the vocabulary of its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zerolab.errors import InputError
from zerolab.models import Config, GPT2Config, LlamaConfig, config_of
from zerolab.run import RunSpec

if TYPE_CHECKING:
    from zerolab.data import Corpus

KINDS: dict[str, type[LlamaConfig] | type[GPT2Config]] = {"llama": LlamaConfig, "gpt2": GPT2Config}


def load_data(run: RunSpec) -> Corpus:
    """The tokens of a run. Raises InputError for text or tokens that cannot be used."""
    from zerolab.data import load_corpus, load_dataset

    if run.dataset is not None:
        return load_dataset(run.dataset, seq_len=run.seq_len)
    return load_corpus(run.data_mode, seq_len=run.seq_len)


def with_vocabulary(run: RunSpec, corpus: Corpus) -> RunSpec:
    """The run with the vocabulary of its data. Raises InputError if its model knows fewer tokens."""
    known = run.vocab_size
    if run.shape is not None:
        known = run.architecture.vocab_size
        if known < corpus.vocab_size:
            raise InputError(
                f"{run.model_name} knows {known} tokens and {corpus.text.source} has {corpus.vocab_size}; take data "
                "that was prepared for it"
            )
    if known is not None and known < corpus.vocab_size:
        raise InputError(
            f"vocab_size is {known} and {corpus.text.source} has {corpus.vocab_size} tokens; give at least as many, or "
            "leave it out"
        )
    return run.model_copy(update={"vocab_size": known or corpus.vocab_size})


def shape_to_save(shape: Config) -> dict[str, Any]:
    """A model's shape as JSON; `saved_shape` reads it."""
    name = next(name for name, kind in KINDS.items() if isinstance(shape, kind))
    return {"architecture": name, **asdict(shape)}


def saved_shape(data: Mapping[str, Any]) -> Config | None:
    """The shape of the model of a checkpoint that `zerolab train` has saved, by the manifest's `data`; None if it says
    nothing of one that we know."""
    said = data.get("shape")
    if isinstance(said, dict) and said.get("architecture") in KINDS:
        try:
            return KINDS[said["architecture"]](
                **{name: value for name, value in said.items() if name != "architecture"}
            )
        except TypeError:
            # Of another version, which knows other sizes.
            return None
    if {"model", "model_size", "seq_len"} <= data.keys():
        return config_of(data["model"], data["model_size"], max_seq_len=data["seq_len"])
    return None
