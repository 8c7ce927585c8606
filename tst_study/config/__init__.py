"""What a run is, before it is trained: the `schema` of a config and its keys, presets, the plan of
the phases, what a setting of superposition is and is called, and the `identity` that decides
whether two runs are the same. Torch-free."""
