"""The verbs on a submitted study: `status`, `watch`, `cancel`, `logs`, `collect`, `clean`."""
