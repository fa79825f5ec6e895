"""From records to answers."""
