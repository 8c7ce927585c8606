# CPU:   docker build -t tst-study .
# CUDA:  docker build -t tst-study --build-arg BASE=nvidia/cuda:13.0.0-runtime-ubuntu24.04 .
# torch comes with its own CUDA libraries, so the base needs the driver's interface alone. Triton
# compiles a little C at its first kernel, hence a compiler and Python's headers.
ARG BASE=python:3.11-slim
FROM ${BASE}
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    git make g++ python3 python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home trainer && install -d -o trainer /tst_study
USER trainer
WORKDIR /tst_study
COPY --chown=trainer . .
RUN make setup
ENV PATH="/tst_study/.venv/bin:$PATH"
CMD ["make", "study"]
