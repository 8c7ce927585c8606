"""The command line: `command_line` has the parser, the commands for models and for
studies call everything below. Nothing imports this subpackage."""
