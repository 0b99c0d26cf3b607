"""A certificate of a server of this machine, which vouches for itself."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> Path:
    """Return `cert.pem`, next to its `key.pem`. `name` as in a certificate: `IP:127.0.0.1`, `DNS:else.example`."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    says = ["-subj", "/CN=of a test", "-addext", f"subjectAltName={name}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *says, *files], check=True, capture_output=True)
    return certificate
