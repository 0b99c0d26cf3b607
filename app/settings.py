"""All settings of the service, read once from `THREEWALLS_*` variables and validated at start."""

import os
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ROOT = Path(__file__).resolve().parent.parent
"""The checkout, if there is one."""
_PACKAGED = Path(__file__).resolve().parent / "_resources"
RESOURCES = _PACKAGED if _PACKAGED.is_dir() else ROOT
"""Folder of `templates`, `static`, `migrations` and `docs`: next to `app` in a checkout, inside it in a wheel."""


def data_home() -> Path:
    """Return the folder of `data` and `demo-data`: the checkout, or the user's data folder for an installed wheel."""
    if RESOURCES == ROOT:
        return ROOT
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "threewalls"


_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class Settings(BaseSettings):
    """The settings. Defaults are the embedded mode: SQLite, a local folder, a worker inside `threewalls serve`."""

    model_config = SettingsConfigDict(env_prefix="THREEWALLS_", extra="ignore", frozen=True, hide_input_in_errors=True)

    data_dir: Path = Field(data_home() / "data", description="Folder for all data of the embedded mode.")
    database_url: str = Field(
        "", repr=False, description="SQLAlchemy URL, sqlite or postgresql+psycopg. Empty: SQLite in the data folder."
    )
    artifact_url: str = Field(
        "",
        description="Storage of raw logs: a folder, or s3://bucket/prefix. Empty: `artifacts` in the data folder.",
    )
    s3_endpoint: str = Field("", description="Endpoint of an S3-compatible store. Empty: AWS.")
    s3_region: str = Field("us-east-1", description="Region of the S3 store.")
    s3_access_key_id: str = Field("", description="Access key of the S3 store.")
    s3_secret_access_key: str = Field("", repr=False, description="Secret key of the S3 store.")
    broker_url: str = Field(
        "",
        repr=False,
        description="Celery broker, redis://host:port/db. Empty: message files in the data folder (embedded).",
    )
    public_url: str = Field(
        "",
        description="Public URL of the service, used in links. Required for OIDC and to listen on any address except "
        "loopback. Empty: taken from each request.",
    )
    session_hours: float = Field(12, gt=0, description="A session ends after this time without use, in hours.")
    session_days: float = Field(30, gt=0, description="A session ends after this time at the latest, in days.")
    totp_for_administrators: bool = Field(
        False,
        description="Administrators who log in by password must add a second factor before they can do anything else.",
    )
    password_memory_mib: int = Field(
        64,
        gt=0,
        le=4096,
        description="Memory of one password check, in MiB; it makes guessing expensive. Use less only in tests.",
    )
    oidc_issuer: str = Field(
        "",
        description="Issuer of the identity provider (OpenID Connect), as in its discovery document. Empty: none.",
    )
    oidc_client_id: str = Field("", description="Client id of this service at the provider.")
    oidc_client_secret: str = Field("", repr=False, description="Client secret at the provider. Empty: PKCE only.")
    oidc_client_secret_file: str = Field("", description="File that contains the client secret, as an alternative.")
    oidc_scopes: str = Field("openid profile email", description="Requested scopes, separated by spaces.")
    oidc_domains: str = Field(
        "",
        description="E-mail domains whose users may log in through the provider, separated by commas. Empty: any.",
    )
    oidc_groups_claim: str = Field(
        "groups",
        description="Claim of the ID token with the groups of the user. Empty: administrators assign groups by hand.",
    )
    oidc_name: str = Field("single sign-on", description="Label of the button on the log-in page.")
    allowed_hosts: str = Field(
        "",
        description="Accepted host names, separated by commas; `*.example.com` for subdomains. Names of this "
        "machine are always accepted. Empty: any.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted, "
        "separated by commas. Empty: none.",
    )
    login_attempts: int = Field(
        10,
        gt=0,
        description="Limit of wrong passwords in 10 minutes per user and address; ten times that for a user or an "
        "address alone.",
    )
    requests_per_minute: int = Field(
        1200,
        ge=0,
        description="Limit of requests per minute for a token, a user, or the address of an anonymous caller; 0: no "
        "limit.",
    )
    uploads_per_minute: int = Field(
        300, ge=0, description="Limit of new uploads per minute, counted in the same way; 0: no limit."
    )
    quota_bytes: int = Field(
        0, ge=0, description="Default storage quota of a project, in decompressed bytes; 0: no limit."
    )
    quota_runs_a_day: int = Field(
        0, ge=0, description="Default quota of new runs of a project within 24 hours; 0: no limit."
    )
    metrics_token: str = Field(
        "",
        repr=False,
        description="Bearer token for /metrics. Empty: only administrators can read it.",
    )
    metrics_stacks: int = Field(
        0,
        ge=0,
        le=1000,
        description="Number of recently active stacks whose step time is on /metrics; 0: none.",
    )
    request_seconds: float = Field(
        60,
        gt=0,
        description="Time limit for the headers of a request, for the whole body of an anonymous request, and for the "
        "next piece of any other body, in seconds.",
    )
    max_upload_bytes: int = Field(
        2 * 1024**3,
        gt=0,
        description="Largest upload, as sent, in bytes. Forms and JSON are limited to 2 MiB, log-ins to 16 KiB.",
    )
    min_free_bytes: int = Field(
        512 * 1024**2,
        ge=0,
        description="Uploads are refused if they would leave less free disk space, in bytes; 0: no check.",
    )
    max_log_bytes: int = Field(4 * 1024**3, gt=0, description="Largest decompressed log file, in bytes.")
    max_profile_bytes: int = Field(
        32 * 1024**3, gt=0, description="Largest decompressed file of a profile (a GPU trace), in bytes."
    )
    profile_seconds: float = Field(
        600, gt=0, description="Limit of processor time for reading an Nsight export, in seconds."
    )
    kernel_classes: str = Field(
        "", description="TOML file with your own classes of GPU kernels (`docs/profiles.md`). Empty: none."
    )
    keep_profiles: bool = Field(False, description="Keep PyTorch profiler traces for download after they are read.")
    perfetto: bool = Field(
        False, description="Offer to open kept traces in ui.perfetto.dev: the browser passes them to that page."
    )
    max_compression_ratio: int = Field(
        200, gt=1, description="Largest compression ratio of uploads over 64 MiB (guards against decompression bombs)."
    )
    max_metadata_bytes: int = Field(256 * 1024, gt=0, description="Largest `meta` document, in bytes.")
    max_wait_seconds: int = Field(120, ge=0, description="Upper limit of `?wait=`, in seconds.")
    lease_seconds: int = Field(60, gt=0, description="Lease of a worker on a run, which it renews, in seconds.")
    sweep_seconds: float = Field(15, gt=0, description="Interval of sweeps for lost work, in seconds.")
    receiving_timeout_seconds: float = Field(
        3600,
        gt=0,
        description="An incomplete run is closed if its log has not grown for this time, in seconds.",
    )
    max_attempts: int = Field(3, gt=0, description="Attempts before a run is parked as failed.")
    task_soft_limit_seconds: int = Field(900, gt=0, description="Time after which a task is interrupted, in seconds.")
    task_hard_limit_seconds: int = Field(960, gt=0, description="Time after which a task is killed, in seconds.")
    worker_concurrency: int = Field(1, gt=0, description="Number of processes per worker.")
    delivery_days: int = Field(90, ge=0, description="Days to keep finished deliveries of notifications; 0: forever.")
    audit_days: int = Field(0, ge=0, description="Days to keep entries of the audit log; 0: forever.")
    backup_url: str = Field(
        "", description="Folder or s3://bucket/prefix for scheduled backups (`docs/backup.md`). Empty: none."
    )
    backup_hours: float = Field(24, gt=0, description="Interval of scheduled backups, in hours.")
    backup_keep: int = Field(7, gt=0, description="Number of scheduled backups that are kept.")
    rules_dir: str = Field("", description="Folder with your own rule files (`docs/rules.md`). Empty: none.")
    t_comm: float = Field(
        0.10, gt=0, lt=1, description="Exposed communication counts as a wall from this share of the step."
    )
    t_idle: float = Field(0.10, gt=0, lt=1, description="GPU idle time counts as a wall from this share of the step.")
    t_headroom: float = Field(0.10, gt=0, lt=1, description="Memory is tight below this free share of GPU memory.")
    t_sm: float = Field(0.5, gt=0, lt=1, description="Kernels that use less than this share of the GPU are too small.")
    t_noise: float = Field(0.01, gt=0, lt=1, description="Relative difference of step times that counts as noise.")
    allow_private_targets: str = Field(
        "",
        description="Private networks that notifications may reach, at any port, separated by commas. Empty: none.",
    )
    smtp_host: str = Field("", description="Mail server for notifications. Empty: no mails.")
    smtp_port: int = Field(587, gt=0, lt=65536, description="Port of the mail server.")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls",
        description="Encryption of the connection to the mail server: starttls, tls, or none.",
    )
    smtp_user: str = Field("", description="User name at the mail server. Empty: no log-in.")
    smtp_password: str = Field("", repr=False, description="Password at the mail server.")
    smtp_from: str = Field("threewalls@localhost", description="Sender address of mails.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_format: Literal["json", "console"] = Field("console", description="Format of the service's own log lines.")

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.task_soft_limit_seconds >= self.task_hard_limit_seconds:
            raise ValueError("THREEWALLS_TASK_SOFT_LIMIT_SECONDS must be below THREEWALLS_TASK_HARD_LIMIT_SECONDS")
        return self

    @model_validator(mode="after")
    def _public_url_is_an_address(self) -> Self:
        parts = urlsplit(self.public_url)
        if self.public_url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("THREEWALLS_PUBLIC_URL must be a URL, for example https://threewalls.example.org")
        return self

    @model_validator(mode="after")
    def _provider_is_whole(self) -> Self:
        if not self.oidc_issuer:
            return self
        if not self.public_url:
            raise ValueError(
                "THREEWALLS_OIDC_ISSUER needs THREEWALLS_PUBLIC_URL: without it, a forged Host header would decide "
                "where the provider redirects users"
            )
        parts = urlsplit(self.oidc_issuer)
        if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _THIS_MACHINE):
            raise ValueError("THREEWALLS_OIDC_ISSUER must be an https URL")
        if not self.oidc_client_id:
            raise ValueError("THREEWALLS_OIDC_ISSUER needs THREEWALLS_OIDC_CLIENT_ID")
        if "openid" not in self.oidc_scopes.split():
            raise ValueError("THREEWALLS_OIDC_SCOPES must contain openid")
        if self.oidc_client_secret_file and not Path(self.oidc_client_secret_file).is_file():
            raise ValueError(f"THREEWALLS_OIDC_CLIENT_SECRET_FILE: file not found: {self.oidc_client_secret_file}")
        return self

    @model_validator(mode="after")
    def _backups_have_room(self) -> Self:
        if self.backup_url.endswith(".tar"):
            raise ValueError("THREEWALLS_BACKUP_URL must be a folder or s3://bucket/prefix: a .tar file is one backup")
        return self

    @model_validator(mode="after")
    def _rules_dir_exists(self) -> Self:
        if self.rules_dir and not Path(self.rules_dir).is_dir():
            raise ValueError(f"THREEWALLS_RULES_DIR: {self.rules_dir} is not a folder")
        return self

    @model_validator(mode="after")
    def _proxies_are_networks(self) -> Self:
        for network in listed(self.trusted_proxies):
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(f"THREEWALLS_TRUSTED_PROXIES: {error}") from None
        return self

    @model_validator(mode="after")
    def _targets_are_networks(self) -> Self:
        try:
            for network in self.allow_private_targets.split(","):
                if network.strip():
                    ip_network(network.strip())
        except ValueError as error:
            raise ValueError(f"THREEWALLS_ALLOW_PRIVATE_TARGETS: {error}") from None
        return self

    @property
    def oidc_email_domains(self) -> frozenset[str]:
        return frozenset(part.strip().lower().lstrip("@") for part in self.oidc_domains.split(",") if part.strip())

    @property
    def oidc_secret(self) -> str:
        if self.oidc_client_secret_file:
            return Path(self.oidc_client_secret_file).read_text().strip()
        return self.oidc_client_secret

    @property
    def session_longest(self) -> timedelta:
        return timedelta(days=self.session_days)

    @property
    def session_idle(self) -> timedelta:
        return min(timedelta(hours=self.session_hours), self.session_longest)

    @property
    def embedded(self) -> bool:
        """Return whether the worker runs inside `threewalls serve` and messages are files."""
        return not self.broker_url

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'threewalls.db'}"

    @property
    def resolved_artifact_url(self) -> str:
        return self.artifact_url or str(self.data_dir.resolve() / "artifacts")


def listed(text: str) -> tuple[str, ...]:
    """Return the comma-separated parts of a setting."""
    return tuple(stripped for part in text.split(",") if (stripped := part.strip()))


@lru_cache
def get_settings() -> Settings:
    """Return the settings of this process. Tests clear the cache or pass their own Settings to `create_app`."""
    return Settings()
