"""A job of a CI system, in the words of an upload."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CiJob:
    """Empty where the environment says nothing.

    `job` is what the job is called from change to change: its reports are found again by it. `key` names this attempt
    of it, so that a repeated upload is known as one. `change` is the number of the pull or merge request, and `commit`
    its own, not that of a trial merge. `commit_time` is ISO 8601. A branch of a fork is `owner:branch`, so that
    nobody's fork passes for the baseline branch. `repository` is `owner/name`. `doubt` says why there is no branch
    where one could have been expected: what may be another's is not stated.
    """

    system: str
    key: str = ""
    job: str = ""
    name: str = ""
    branch: str = ""
    commit: str = ""
    commit_time: str = ""
    ci_url: str = ""
    change: str = ""
    attempt: int = 1
    tag: str = ""
    repository: str = ""
    doubt: str = ""

    def metadata(self) -> dict[str, object]:
        """What of it an upload states."""
        said = {
            "job": self.job,
            "name": self.name,
            "branch": self.branch,
            "commit": self.commit,
            "commit_time": self.commit_time,
            "ci_url": self.ci_url,
        }
        tags = [f"change-{self.change}"] if self.change else []
        tags += [self.tag] if self.tag else []
        return {name: value for name, value in said.items() if value} | ({"tags": tags} if tags else {})
