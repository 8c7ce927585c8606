"""The work of the commands for a submitted study: `status`, `cancel`, `logs`, `collect` and
`clean`."""
