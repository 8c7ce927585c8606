"""The process that trains: its rank among others, the ranks that it starts itself, its cores,
requests to stop, the clock of its steps, batches read ahead, memory that is used again."""
