# Two images:
#   docker build --target service -t domino-tune .            the service and all commands, no torch
#   docker build --target runtime -t domino-tune-runtime .    on a CUDA image that brings torch
ARG BASE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime

FROM python:3.12-slim AS service
WORKDIR /opt/domino_tune
COPY . .
# The constraints name torch, and nothing asks for it. Bytecode is compiled now, by pip: the root file
# system may be read-only later. All state is in one folder; the user's number is for Kubernetes,
# which cannot look up names.
RUN pip install --no-cache-dir -c constraints.txt '.[api,postgres,dask]'
# So are the simulator's loops.
ENV DOMINO_TUNE_KERNELS=/opt/domino_tune/kernels
RUN python -m simulator.kernels
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/domino_tune domino \
    && install -d -o domino -g domino -m 0700 /var/lib/domino_tune
USER 10001:10001
WORKDIR /var/lib/domino_tune
ENV HOME=/var/lib/domino_tune DOMINO_TUNE_HOME=/var/lib/domino_tune \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
VOLUME /var/lib/domino_tune
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["domino-tune"]
# From outside the container only this address is reached; it wants a token: see docs/service.md.
CMD ["serve", "--host", "0.0.0.0"]

FROM ${BASE} AS runtime
WORKDIR /opt/domino_tune
COPY . .
# Neither the runtime extra nor the constraints: the base image's torch and numpy stay as they are.
RUN pip install --no-cache-dir .
ENV DOMINO_TUNE_KERNELS=/opt/domino_tune/kernels
RUN python -m simulator.kernels
WORKDIR /workspace
ENTRYPOINT ["domino-tune"]
CMD ["--help"]
