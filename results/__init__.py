"""What came out: the paper's rows as data, the records of runs, and tables of both."""
