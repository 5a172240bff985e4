"""`zerolab sample`: text from what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.data.bins import find_dataset, read_meta
from zerolab.data.tokenizer import Tokenizer
from zerolab.errors import InputError
from zerolab.run.spec import Count, Seed, flag


class SampleFlags(Flags):
    """Show how a trained model goes on with a text."""

    folder: Annotated[Path, "FOLDER"] = flag("of a run, or Hugging Face's", ...)
    prompt: str | None = flag("how the text begins (default: a new line)")
    tokens: Count = flag("tokens to add", 200)
    temperature: Annotated[float, Field(ge=0)] = flag("0: the likeliest; 1: as it says", 0.8)
    top_k: Count | None = flag("draw among so many (default: all)")
    seed: Seed = flag("another seed, another text", 0)
    dataset: str | None = flag("data with these tokens, where the model does not say")


def main(arguments: list[str]) -> int:
    given = SampleFlags.read("zerolab sample", arguments)
    if not given.folder.expanduser().is_dir():
        raise InputError(f"there is no folder {str(given.folder)!r}; name one that zerolab train has saved to")
    of_data = read_meta(find_dataset(given.dataset)) if given.dataset else None
    # All of the rest takes torch.
    from zerolab.apps.interop.huggingface.whole import load_learned
    from zerolab.models.generate import generate

    model, tokenizer = load_learned(given.folder)
    if of_data:
        tokenizer = of_data[1]
    shape = model.config
    if tokenizer is not None and tokenizer.vocab_size > shape.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model knows {shape.vocab_size}; give --dataset"
        )
    prompt = read_prompt(given.prompt or "\n", tokenizer, shape.vocab_size)
    options = given.model_dump(include={"temperature", "top_k", "seed"})
    options |= {"context": shape.max_seq_len, "known": tokenizer and tokenizer.vocab_size}
    tokens = [*prompt, *generate(model, prompt, given.tokens, **options)]
    text = " ".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(tokens)
    ending.print_output(text + "\n")
    return 0


def read_prompt(text: str, tokenizer: Tokenizer | None, vocab_size: int) -> list[int]:
    """The tokens to begin with."""
    if tokenizer is not None:
        known = getattr(tokenizer, "characters", None)
        if known is not None and text == "\n" and "\n" not in known:
            # Nobody asked for a new line.
            text = known[0]
        return [int(token) for token in tokenizer.encode(text).tolist()]
    words = text.split() or ["0"]
    if not all(word.isdecimal() and int(word) < vocab_size for word in words):
        raise InputError(
            f"--prompt is {text!r}, but nobody knows what text the tokens are; give their "
            f"numbers, below {vocab_size}, or --dataset with a tokenizer"
        )
    return [int(word) for word in words]
