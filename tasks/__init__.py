"""What is learned: the contract, what all tasks share, and one folder per task."""
