"""The OpenAPI document of the service says what the check answers."""

from tests.access.people import Teams


def test_every_call_says_how_to_say_who_one_is_and_what_one_hears(teams: Teams) -> None:
    document = teams.client("anonymous").get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"token", "session"}
    for path, calls in document["paths"].items():
        for call in calls.values():
            if path.startswith("/api/"):
                assert {"401", "403"} <= set(call["responses"]), path
                assert call["security"], path
    calls = document["paths"]["/api/v1/runs/{run_id}"]
    assert calls["get"]["security"] == [{"token": []}, {"session": []}, {}]
    retry = document["paths"]["/api/v1/definitions/retry"]["post"]
    assert retry["security"] == [{"session": []}]
    assert "security" not in document["paths"]["/healthz"]["get"]
