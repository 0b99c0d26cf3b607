"""Messages to users and programs outside: receivers, delivery, and the result of each delivery."""
