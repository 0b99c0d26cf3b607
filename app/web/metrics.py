"""What Prometheus scrapes. Requests are labelled by route template, never by address: ids would make endless series."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
STATUSES = ("received", "processing", "ready", "failed", "unread")


class Metrics:
    """One registry an application, so that tests can have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "threewalls_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "threewalls_http_request_seconds",
            "Time until the answer was sent whole.",
            ("method", "route"),
            buckets=REQUEST_SECONDS,
            registry=self.registry,
        )
        self.runs = Gauge("threewalls_runs", "Runs by status.", ("status",), registry=self.registry)
        self.oldest_waiting_seconds = Gauge(
            "threewalls_oldest_waiting_seconds",
            "Age of the oldest run that is not processed yet; 0 when none waits.",
            registry=self.registry,
        )
        self.given_up = Gauge(
            "threewalls_given_up",
            "Runs and stacks that workers gave up; they rest until something of them changes.",
            ("kind",),
            registry=self.registry,
        )
        self.definitions = Gauge(
            "threewalls_definitions_runs",
            "Runs by their figures: of the current definitions, waiting to be computed again, failed at that.",
            ("state",),
            registry=self.registry,
        )
