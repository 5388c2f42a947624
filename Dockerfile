# The service and nothing else: built from the checkout with the versions in constraints.txt, run by a user that owns only its data.
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY ledger ledger
COPY migrations migrations
# The variable holds for what builds the package as well; a flag would not.
ENV PIP_CONSTRAINT=/source/constraints.txt
RUN python -m venv /opt/ledger && /opt/ledger/bin/pip install --no-cache-dir .

FROM python:3.11.13-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/training-ledger --create-home ledger
COPY --from=build /opt/ledger /opt/ledger
# Without a setting the embedded database lies in /var/lib/training-ledger: mount a volume there to keep it.
ENV PATH=/opt/ledger/bin:$PATH XDG_DATA_HOME=/var/lib PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/training-ledger
EXPOSE 8400
ENTRYPOINT ["ledger"]
CMD ["serve"]
