# Two images:
#   docker build --target service -t domino-tune .            predictions and tuning, no torch
#   docker build --target runtime -t domino-tune-runtime .    on a CUDA image that brings torch
ARG BASE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime

FROM python:3.12-slim AS service
WORKDIR /opt/domino_tune
COPY . .
RUN pip install --no-cache-dir -c constraints.txt '.[api]' \
    && useradd --create-home domino
USER domino
WORKDIR /home/domino
ENV DOMINO_TUNE_HOME=/home/domino/.domino_tune
ENTRYPOINT ["domino-tune"]
CMD ["--help"]

FROM ${BASE} AS runtime
WORKDIR /opt/domino_tune
COPY . .
# Neither the runtime extra nor the constraints: the base image's torch and numpy stay as they are.
RUN pip install --no-cache-dir .
WORKDIR /workspace
ENTRYPOINT ["domino-tune"]
CMD ["--help"]
