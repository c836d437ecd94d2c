"""Texts and tokenizers for tests."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["the", "a", "b", "c", "d", "e"]]


def tokenizer(path: Path, words: list[str] = WORDS, **settings: Any) -> Path:
    """Writes a tokenizer of words between [CLS] and [SEP], with its own truncation and padding in the file."""
    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
    )
    made.enable_truncation(5)
    made.enable_padding(length=9)
    made.save(str(path))
    return path


def ranks(path: Path) -> Path:
    """Writes ranks of tiktoken: all bytes, and some pairs that merge."""
    words = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" a", b" b", b" the"]
    path.write_bytes(b"".join(base64.b64encode(word) + b" %d\n" % rank for rank, word in enumerate(words)))
    return path


def sentences(path: Path, text: list[str]) -> Path:
    """Writes a model of sentencepiece, trained on some texts."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=20, model_type="bpe", minloglevel=2
    )
    path.write_bytes(model.getvalue())
    return path


def vocabulary(path: Path, words: list[str] = WORDS) -> Path:
    """Writes a word a line."""
    path.write_text("".join(f"{word}\n" for word in words))
    return path


def lines(count: int, longest: int = 40, seed: int = 0) -> list[str]:
    """Returns texts of 1 to `longest` words that `vocabulary` has, few of them long."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS[4:], k=int(longest ** draw.random()))) for _ in range(count)]
