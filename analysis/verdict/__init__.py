"""Who won: questions declared before their runs (`question`), and what the runs answer."""
