"""Tokenizer, chat template, incremental detokenising, stop strings."""
