"""What was changed, by whom, when and from what: for administrators, and for maintainers of their own projects."""
