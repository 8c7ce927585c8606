"""Text to token files, once: a `request` names its sources, `text_sources` reads them,
`text_tokenizers` trains or loads a tokenizer, `prepare` writes shards and their manifest.
`generated_language` makes text with known statistics."""
