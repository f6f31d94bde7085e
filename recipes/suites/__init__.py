"""What suite.py is made of: a suite's definition, its folder, the state of a run, the processes, the table."""
