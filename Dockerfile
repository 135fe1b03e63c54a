# syntax=docker/dockerfile:1
# Image of llmprof: `docker build -t llmprof .` for the CPU, and for NVIDIA GPUs
#   docker build -t llmprof:cuda --build-arg VARIANT=cuda \
#     --build-arg BUILD_BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04 \
#     --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04 --build-arg CUDA_COMPUTE_CAP=90 .
# The service is the same in both and links no CUDA; model runner and tools differ.
#
# A container is reached through its port, so it requires a token; create the first one before:
#   docker run --rm -v llmprof:/data llmprof token create --role admin --name ann
#   docker run -v llmprof:/data -p 127.0.0.1:8080:8080 llmprof
# Publish the port on loopback, or to a proxy that speaks TLS; LLMPROF__SERVER__TLS__CERTIFICATE and
# __KEY serve TLS from the container, with LLMPROF__SERVER__BEHIND_PROXY=false.
ARG BUILD_BASE=debian:bookworm
ARG BASE=debian:bookworm-slim

# hadolint ignore=DL3006
FROM ${BUILD_BASE} AS build
ARG VARIANT=cpu
ARG RUST_VERSION=1.95.0
# Generation of the GPUs that kernels are compiled for: 80 A100, 90 H100 and H200.
ARG CUDA_COMPUTE_CAP=90
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates curl pkg-config \
    && rm -rf /var/lib/apt/lists/*
ENV CARGO_HOME=/opt/cargo RUSTUP_HOME=/opt/rustup PATH=/opt/cargo/bin:/usr/local/cuda/bin:$PATH
RUN curl --proto '=https' --tlsv1.2 -fsS https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain "$RUST_VERSION"
WORKDIR /src
COPY . .
# The service is built without the feature, so that it starts where there is no driver.
RUN cargo build --locked --release --bin llmprof && cp target/release/llmprof /opt/llmprof \
    && if [ "$VARIANT" = cuda ]; then set -- --features cuda; fi \
    && CUDA_COMPUTE_CAP="$CUDA_COMPUTE_CAP" cargo build --locked --release "$@" --bin model-runner \
    && cp target/release/model-runner /opt/model-runner

# hadolint ignore=DL3006
FROM ${BASE}
ARG VARIANT=cpu
# nsys and ncu are packages of NVIDIA's repository, which the CUDA base images have enabled.
ARG NSIGHT_PACKAGES="nsight-systems-cli cuda-nsight-compute-13-0"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008,SC2086
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl tini util-linux \
    && if [ "$VARIANT" = cuda ]; then apt-get install -y --no-install-recommends $NSIGHT_PACKAGES; fi \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin llmprof \
    && install -d -o llmprof -g llmprof /data /inputs
COPY --from=build /opt/llmprof /opt/model-runner /usr/local/bin/
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8080
# The published port decides who reaches the service, so the container's network counts as a proxy.
ENV LLMPROF__SERVER__LISTEN=0.0.0.0:8080 LLMPROF__SERVER__BEHIND_PROXY=true LLMPROF__SERVER__DATA=/data
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/readyz"]
# An init reaps processes that profilers leave and forwards SIGTERM: running runs are requeued.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/llmprof"]
CMD ["serve"]
