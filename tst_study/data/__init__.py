"""From text to token files, and from token files to the batches of a run. Torch-free.

The data flow, file by file: `text_sources` reads documents, `text_tokenizers` turns them into
ids, `prepare` writes them as Megatron `.bin/.idx` pairs (`token_file`) beside a `manifest`;
`token_stream` deals them out to training steps, `held_out` to evaluation.
"""
