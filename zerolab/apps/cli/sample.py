"""`zerolab sample`: text from what was trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser
from zerolab.apps.interop.huggingface.whole import load_learned
from zerolab.data import find_dataset, read_meta
from zerolab.data.tokenizer import Tokenizer
from zerolab.errors import InputError
from zerolab.models.generate import generate


def main(arguments: list[str]) -> int:
    given = make_parser().parse_args(arguments)
    count = whole("--tokens", given.tokens, 1)
    temperature = number("--temperature", given.temperature)
    top_k = None if given.top_k is None else whole("--top-k", given.top_k, 1)
    seed = whole("--seed", given.seed, 0)
    if not given.folder.expanduser().is_dir():
        raise InputError(f"there is no folder {str(given.folder)!r}; name one that zerolab train has saved to")
    model, tokenizer = load_learned(given.folder)
    if given.dataset is not None:
        tokenizer = read_meta(find_dataset(given.dataset))[1]
    shape = model.config
    if tokenizer is not None and tokenizer.vocab_size > shape.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model knows {shape.vocab_size}; give "
            "--dataset the data that it was trained on"
        )
    prompt = read_prompt(given.prompt, tokenizer, shape.vocab_size)
    drawn = generate(
        model,
        prompt,
        count,
        context=shape.max_seq_len,
        temperature=temperature,
        top_k=top_k,
        known=None if tokenizer is None else tokenizer.vocab_size,
        seed=seed,
    )
    tokens = [*prompt, *drawn]
    ending.show((" ".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(tokens)) + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="zerolab sample",
        description="Show how a trained model goes on with a text. It is read into one process, whatever stage and "
        "number of ranks it was trained with.",
    )
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        help="what zerolab train saved (--save-folder; the newest checkpoint is taken, or the one that it is), or a "
        "Hugging Face folder of one of these models, such as zerolab checkpoint consolidate --huggingface writes",
    )
    parser.add_argument("--prompt", metavar="TEXT", default="\n", help="how the text begins (default: a new line)")
    parser.add_argument("--tokens", metavar="N", default="200", help="tokens to add (default: 200)")
    parser.add_argument(
        "--temperature",
        metavar="T",
        default="0.8",
        help="0: always the likeliest token; 1: as the model says (default: 0.8)",
    )
    parser.add_argument("--top-k", metavar="K", default=None, help="draw among the K likeliest tokens (default: all)")
    parser.add_argument("--seed", metavar="S", default="0", help="another seed, another text (default: 0)")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        default=None,
        help="data whose tokens these are, a folder or a name in data/, where the model does not say; without any, "
        "--prompt and what is shown are the tokens' numbers",
    )
    return parser


def whole(flag: str, text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) < 1 << 63:
        raise InputError(f"{flag} is {text!r}; give a whole number of at least {least}")
    return int(text)


def number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{flag} is {text!r}; give a number of at least 0")
    return value


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
            f"--prompt is {text!r}, but nobody knows what text the model's tokens are; give their numbers, below "
            f"{vocab_size}, or --dataset with a meta.json that names the tokenizer"
        )
    return [int(word) for word in words]
