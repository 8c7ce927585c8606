"""A run before it is trained. `schema` has the typed config, `keys` its dotted keys, `presets`
named models, `phase_plan` counters and learning rates, `superposition_setting` settings and their
names; `identity` decides whether two runs are the same; `architecture` translates to and from
Hugging Face's config.json; `optimizer_kinds` and `megatron_version` hold facts that other packages
look up. Torch-free."""
