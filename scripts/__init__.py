"""Who presses the button: thin mains, each run as `python -m scripts.NAME`."""
