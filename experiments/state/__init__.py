"""What the commands for a submitted study do: `status`, `cancel`, `logs`, `collect` and `clean`."""
