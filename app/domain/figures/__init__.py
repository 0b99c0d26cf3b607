"""From step times to headline figures: which iterations count, and what they are worth."""
