"""The commands for a submitted study: `status`, `cancel`, `logs`, `collect`, `clean`."""
