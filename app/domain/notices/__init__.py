"""What is worth a message, what it says, how it looks in each channel, how it is signed and where it may go.

docs/notifications.md has it in prose. All of it is pure: who sends it is app/notifications.
"""
