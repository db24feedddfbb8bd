# The image of docker-compose.yml: the library, the consumer and the shop, as an unprivileged user.
FROM python:3.13-slim-bookworm

ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app

COPY requirements.txt ./
RUN pip install --require-hashes -r requirements.txt

COPY pyproject.toml README.md LICENSE ./
COPY outbox outbox
COPY consumers consumers
RUN pip install --no-deps --no-build-isolation .
# Not part of the wheel: `python -m shop_example` finds it in the working directory.
COPY shop_example shop_example

RUN useradd --system app && install --directory --owner=app /data
USER app
