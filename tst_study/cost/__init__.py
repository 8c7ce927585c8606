"""The cost of a run, computed from its config alone and without torch.

- `compute`: parameters, FLOPs and GPU-hours
- `memory`: bytes on the fullest rank
- `devices`: peak rates of GPUs, and the MFU that published trainings reached on them
- `prices`: GPU-hours on a device, and their price
- `parallel_layout`: the layouts (ways of splitting a run over ranks) that can work
- `traffic`: bytes that a layout makes each rank move
- `auto_layout`: the choice of a layout for `parallel = "auto"`
"""
