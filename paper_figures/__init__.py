"""One file per figure and table, drawn from run folders alone. Never imports torch."""
