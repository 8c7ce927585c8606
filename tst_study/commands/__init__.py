"""The roof, what a person types: `command_line` has the parser, the verbs of models and of studies
call everything below. Nothing imports this room."""
