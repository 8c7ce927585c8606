"""What a run costs before it runs: products per token (`compute`), memory, devices, the
layouts that work and the one chosen by `auto_layout`. Torch-free."""
