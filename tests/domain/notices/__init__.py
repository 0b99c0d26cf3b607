"""What is worth a message, its text, its signature and where it may go."""
