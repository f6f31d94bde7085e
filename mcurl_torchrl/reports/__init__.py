"""After training: statistics over seeds and tasks, figures, and pages of them."""
