"""A run before it is trained. `schema` has the typed config, `keys` its dotted keys, `presets`
named models, `phase_plan` counters and learning rates, `superposition_setting` settings and their
names, `identity` decides whether two runs are the same. Torch-free."""
