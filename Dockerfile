# One image for web, worker, beat and migrate. Dependencies come from the locks, with their hashes.
# `.ci/pin-images` adds the digest of the base image: docs/deploy.md, "Images".
FROM python:3.11.17-slim-bookworm AS python

# `threewalls backup` needs pg_dump and pg_restore of the server's version, which the Debian release of Python's image
# does not have. They come with the libraries they load, apart from those of the system.
FROM postgres:17.12-bookworm AS postgres
RUN mkdir -p /opt/postgresql/lib && cp /usr/lib/postgresql/17/bin/pg_dump /usr/lib/postgresql/17/bin/pg_restore /opt/postgresql && \
    ldd /opt/postgresql/pg_dump /opt/postgresql/pg_restore | awk '$3 ~ /^\// && $1 !~ /^lib(c|m)\.so/ { print $3 }' | \
      sort -u | xargs cp --dereference --target-directory /opt/postgresql/lib && \
    for program in pg_dump pg_restore; do \
      printf '#!/bin/sh\nLD_LIBRARY_PATH=/opt/postgresql/lib exec /opt/postgresql/%s "$@"\n' $program > /usr/local/bin/$program && \
      chmod 755 /usr/local/bin/$program; \
    done

FROM python AS build
WORKDIR /srv/threewalls
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
RUN python -m venv /opt/threewalls
ENV PATH=/opt/threewalls/bin:$PATH
COPY requirements-build.lock requirements.lock ./
RUN pip install --no-deps --require-hashes -r requirements-build.lock && \
    uv pip install --python /opt/threewalls/bin/python --no-deps --require-hashes -r requirements.lock
COPY pyproject.toml setup.py README.md threewalls_entry.py ./
COPY app app
COPY workers workers
COPY threewalls threewalls
RUN pip install --no-deps --no-build-isolation --no-index --editable . && pip uninstall --yes uv setuptools pip

FROM python
# The service cannot install packages: the tools of the base image and the build stage are removed.
RUN python -m pip uninstall --yes --root-user-action=ignore wheel setuptools pip && \
    rm -rf /usr/local/lib/python3.11/ensurepip && \
    groupadd --system --gid 10001 threewalls && \
    useradd --system --uid 10001 --gid 10001 --home-dir /data threewalls && \
    install -d -o threewalls -g threewalls /data /backups
COPY --from=postgres /opt/postgresql /opt/postgresql
COPY --from=postgres /usr/local/bin/pg_dump /usr/local/bin/pg_restore /usr/local/bin/
COPY --from=build /opt/threewalls /opt/threewalls
WORKDIR /srv/threewalls
COPY --from=build /srv/threewalls/app app
COPY --from=build /srv/threewalls/workers workers
COPY --from=build /srv/threewalls/threewalls threewalls
COPY --from=build /srv/threewalls/pyproject.toml /srv/threewalls/threewalls_entry.py ./
COPY migrations migrations
COPY templates templates
COPY static static
COPY docs docs
COPY deploy/proxy deploy/proxy
ENV PATH=/opt/threewalls/bin:$PATH PYTHONUNBUFFERED=1 THREEWALLS_DATA_DIR=/data
# Bytecode in the image makes a container start in a fraction of the time.
RUN python -m compileall -q /opt/threewalls/lib app workers threewalls migrations
# By number, so that Kubernetes can verify that it is not root.
USER 10001:10001
VOLUME ["/data", "/backups"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["threewalls", "serve", "--host", "0.0.0.0"]
