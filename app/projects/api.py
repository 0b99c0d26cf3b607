"""`/api/v1/projects/{slug}/defaults`, `/api/v1/availability`: what holds for more than one run."""

from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from app.domain.run import Value
from app.projects.availability import find_availability
from app.projects.defaults import MAX_AUTHOR, Default, Defaults, get_defaults, set_defaults
from app.web.dependencies import AppEngine, ReadSession
from app.web.problems import documented

router = APIRouter(prefix="/api/v1", tags=["projects"])

Slug = Annotated[str, Path(min_length=1, max_length=100, description="Name of the project, as in `meta.project`.")]


class DefaultOut(BaseModel):
    value: Value
    author: str
    changed_at: datetime

    @classmethod
    def of(cls, default: Default) -> Self:
        return cls(value=default.value, author=default.author, changed_at=default.changed_at)


class DefaultsOut(BaseModel):
    project: str
    fields: dict[str, DefaultOut] = Field(description="By contract field: used where a run and its log say nothing.")
    container_image: DefaultOut | None = Field(description="Completes a container's name; null without a rule.")

    @classmethod
    def of(cls, defaults: Defaults) -> Self:
        rule = defaults.container_image
        fields = {name: DefaultOut.of(default) for name, default in defaults.fields.items()}
        return cls(project=defaults.project, fields=fields, container_image=rule and DefaultOut.of(rule))


class DefaultsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    fields: dict[str, Any] = Field({}, description="By contract field; they replace all that were set before.")
    container_image: str = Field(
        "", max_length=500, description="For instance nvcr.io/nvidia/nemo: then `26.06` is whole."
    )
    author: str = Field(min_length=1, max_length=MAX_AUTHOR, description="Who sets them.")


class EvidenceOut(BaseModel):
    file: int
    line: int
    text: str


class AvailabilityItem(BaseModel):
    """A dispatcher in a container, over all runs whose logs prove something of it."""

    container: str | None = Field(description="null: runs whose container nobody states.")
    dispatcher: str
    available: bool = Field(description="As the newest run shows.")
    runs_with: int = Field(description="Runs that show that it works.")
    runs_without: int = Field(description="Runs that show that it does not.")
    run_id: int = Field(description="The newest of them.")
    seen_at: datetime
    evidence: list[EvidenceOut]


class AvailabilityList(BaseModel):
    items: list[AvailabilityItem]


@router.get("/projects/{slug}/defaults", responses=documented(404, 422))
def read_defaults(session: ReadSession, slug: Slug) -> DefaultsOut:
    """What the project's runs have unless they say otherwise."""
    return DefaultsOut.of(get_defaults(session, slug))


@router.put("/projects/{slug}/defaults", responses=documented(404, 422))
def write_defaults(engine: AppEngine, slug: Slug, defaults: DefaultsIn) -> DefaultsOut:
    """Replace the defaults. The runs that they concern are read again."""
    return DefaultsOut.of(
        set_defaults(
            engine,
            slug,
            fields=defaults.fields,
            container_image=defaults.container_image,
            author=defaults.author,
        )
    )


@router.get("/availability", responses=documented(422))
def read_availability(
    session: ReadSession,
    container: Annotated[str, Query(max_length=500, description="Only this one; else all.")] = "",
    project: Annotated[str, Query(max_length=100, description="Only runs of this project; else of all.")] = "",
) -> AvailabilityList:
    """Which dispatchers work in which container. A failed import is a fact of the container, not of speed."""
    found = find_availability(session, container=container, project=project)
    return AvailabilityList(items=[AvailabilityItem.model_validate(item, from_attributes=True) for item in found])
