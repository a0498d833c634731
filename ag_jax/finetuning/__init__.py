"""Fine-tuning of encoders: suites of tasks, trials over seeds and sweeps, and reports like the tables of papers."""
