"""Pictures and tables of a study's own runs: from run folders alone."""
