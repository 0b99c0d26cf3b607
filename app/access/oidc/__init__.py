"""Log-in by an identity provider: OpenID Connect, authorization code with PKCE (https://openid.net/specs/openid-connect-core-1_0.html)."""
