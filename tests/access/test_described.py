"""The OpenAPI document of the service says what the check answers."""

from app.access.routes import route_table
from app.domain.access.principal import Action
from tests.access.people import Teams


def test_every_call_says_how_to_say_who_one_is_and_what_one_hears(teams: Teams) -> None:
    document = teams.client("anonymous").get("/openapi.json").json()
    paths = document["paths"]
    assert set(document["components"]["securitySchemes"]) == {"token", "session"}
    for route in route_table(teams.app).routes:
        if route.path in paths and isinstance(route.rule.needs, Action):
            call = paths[route.path][route.method.lower()]
            wanted = {"401", "403"} | ({"404"} if route.rule.owner else set())
            assert (bool(call["security"]), wanted - set(call["responses"])) == (True, set()), route.key
    assert paths["/api/v1/runs/{run_id}"]["get"]["security"] == [{"token": []}, {"session": []}, {}]
    assert paths["/api/v1/definitions/retry"]["post"]["security"] == [{"session": []}]
    assert "security" not in paths["/healthz"]["get"]
