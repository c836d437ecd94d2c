"""Texts and a tokenizer for tests."""

from __future__ import annotations

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
