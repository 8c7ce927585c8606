"""Token files, and the batches of a run that are read from them. Torch-free.

`preparation/` makes Megatron's `.bin/.idx` pairs (`token_file`) beside a `manifest` from text;
`token_stream` deals them out to training steps, `held_out` to evaluation.
"""
