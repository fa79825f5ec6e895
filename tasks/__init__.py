"""What is learned: the contract, what all subjects share, and one folder per subject."""
