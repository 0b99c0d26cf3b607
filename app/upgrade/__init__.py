"""The upgrade report: one container, cluster or version against another, over all stacks of a project."""
