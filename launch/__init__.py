"""From a command to processes."""
