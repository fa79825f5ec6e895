# The environment of the suite, from requirements.lock. The checkout is mounted, not copied:
#
#   docker build -t novograd-repro .
#   docker run --gpus all --shm-size=32g --ulimit memlock=-1 -v "$PWD:/repro" novograd-repro \
#     make reproduce-imagenet
#
# --shm-size: loading processes pass batches on through /dev/shm, of which containers have 64 MB by
# default; a launch that finds too little says how much it needs. Build the image anew when
# requirements.lock changes. --build-arg TORCH_INDEX=… chooses another build of torch: docs/gpu.md.
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git libsndfile1 make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /repro
ENV VENV=/opt/venv
COPY Makefile requirements.lock pyproject.toml ./
COPY optim ./optim
COPY engine ./engine
COPY launch ./launch
COPY scripts ./scripts
ARG TORCH_INDEX=
RUN make setup PYTHON=python3.11 TORCH_INDEX="${TORCH_INDEX}"
# The mounted checkout's lock may be younger than this environment, which was made from it.
RUN touch --date=2100-01-01 /opt/venv/.installed-from-lock
