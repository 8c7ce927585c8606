"""Token files, and the batches of a run that are read from them. Torch-free.

`preparation/` turns text into Megatron's `.bin/.idx` pairs (`token_file`) and their `manifest`,
with which `integrity` compares them. `token_stream` deals the tokens to training steps, `held_out`
cuts those of evaluation, and `run_data` opens both for a run.
"""
