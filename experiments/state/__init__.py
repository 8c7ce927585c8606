"""The verbs on a submitted study: `status`, `cancel`, `logs`, `collect`, `clean`."""
