"""Messages to people and programs outside: who gets them, how they are sent, what became of each."""
