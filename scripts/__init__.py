"""Command-line entry points, `python -m scripts.NAME`: each begins here, before its imports."""

from launch.entry import begin, command_name

if (name := command_name()) is not None:
    begin(name)
