"""Text to token files, once: a `request` names its sources, `text_sources` reads them,
`text_tokenizers` trains or loads a tokenizer, and `prepare` writes token files and their manifest
into a `prepared_folder`. `generated_language` makes text with known statistics, and `adopt`
describes token files that other tools made."""
