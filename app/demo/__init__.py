"""The demo project: generated jobs, as complete logs in the formats of the trainers."""
