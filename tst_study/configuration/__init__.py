"""What a config may say and what follows from it: its keys by name, the presets of models, the plan
of the phases, the learning rate of a step, what a setting of superposition is and is called, and
which versions of Megatron-Core serve. `tst_study.config` is the schema itself. Torch-free."""
