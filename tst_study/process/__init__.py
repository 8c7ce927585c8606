"""The training process: its rank, the ranks that it starts, its cores and memory, requests to stop,
and the timing of its steps."""
