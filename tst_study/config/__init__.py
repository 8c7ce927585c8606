"""The configuration of a run, and what follows from it before the run is trained.

- `schema`: the typed config, read from TOML files
- `keys`: its dotted keys, and messages about keys that are unknown or have a wrong value
- `presets`: named model shapes
- `phase_plan`: the phases, token counts and learning rates of a run, step by step
- `superposition_setting`: s, r and the ablations of a run, and how they are named
- `identity`: which runs are the same, and which steps several runs share
- `architecture`: translation to and from the `config.json` of Hugging Face models
- `tensor_names`: the tensors and files of their weights
- `optimizer_kinds`, `megatron_version`: facts about optimizers and Megatron-Core versions, which
  other packages look up

Importing these modules does not import torch.
"""
