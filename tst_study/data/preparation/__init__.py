"""Makes the token files of a corpus, once, before any run reads them.

- `request`: the sources and the options that are asked for
- `text_sources`: reads documents from files and from datasets of the Hugging Face hub
- `text_tokenizers`: trains or loads a tokenizer
- `prepare`: tokenises the documents, and writes token files and their manifest
- `prepared_folder`: keeps finished work between calls, and keeps two calls from colliding
- `generated_language`: writes token files of a generated text with known statistics
- `adopt`: describes token files that other tools made
"""
