"""What a run costs before it runs: products per token (`compute`), memory, a step's time, the
layouts that its `devices` allow and the one chosen by `auto_layout`. Torch-free."""
