"""Fine-tuning: suites of tasks, trials over seeds and sweeps, and the tables that papers print."""
