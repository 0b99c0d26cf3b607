"""The demo project: jobs that never ran, as complete logs in the trainers' own formats."""
