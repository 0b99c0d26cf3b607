"""Mails by the mail server of the settings, which an administrator named: it may be a private one."""

import smtplib
import ssl
from email.message import EmailMessage

from app.notifications.outgoing import NotReachedError
from app.settings import Settings

SECONDS = 10.0


def send_mail(settings: Settings, message: EmailMessage) -> tuple[str, ...]:
    """The mailboxes that the server refused while it took others. Raises NotReachedError."""
    if not settings.smtp_host:
        raise NotReachedError("No mail server is set: THREEWALLS_SMTP_HOST.")
    try:
        with _server(settings) as server:
            if settings.smtp_security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if settings.smtp_user:
                server.login(settings.smtp_user, settings.smtp_password)
            return tuple(server.send_message(message))
    except smtplib.SMTPRecipientsRefused:
        raise NotReachedError("The mail server refused every mailbox.") from None
    except smtplib.SMTPResponseException as error:
        # Its words may repeat what it was told, the log-in among it; the number says enough.
        raise NotReachedError(f"The mail server answered {error.smtp_code} ({type(error).__name__}).") from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotReachedError(f"The mail server did not take it ({type(error).__name__}).") from None


def _server(settings: Settings) -> smtplib.SMTP:
    host, port = settings.smtp_host, settings.smtp_port
    if settings.smtp_security == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=SECONDS)
