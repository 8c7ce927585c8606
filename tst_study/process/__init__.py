"""The process that trains: its rank among others, the ranks that it starts itself, requests to
stop, the clock of its steps, batches read ahead, memory that is used again."""
