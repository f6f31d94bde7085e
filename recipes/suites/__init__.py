"""The parts of suite.py: a suite's definition, its folder, the state of a run, the processes, the table."""
