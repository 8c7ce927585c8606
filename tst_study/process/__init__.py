"""The training process: its rank, the ranks that it starts, its cores and memory, requests to stop,
the timing of its steps, and the thread that reads batches ahead."""
