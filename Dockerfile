# Image of llmprof: `docker build -t llmprof .` for the CPU, and for NVIDIA GPUs
#   docker build -t llmprof:cuda --build-arg VARIANT=cuda \
#     --build-arg BUILD_BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6 \
#     --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04@sha256:6a0e31b59e70890446f2c17356d6efc0d54260090a8c63d6ca7c2ad049db95d2 .
# The service is the same in both and links no CUDA; model runner and tools differ.
#
# A container is reached through its port, so it requires a token; create the first one before:
#   docker run --rm -v llmprof:/data llmprof token create --role admin --name ann
#   docker run -v llmprof:/data -p 127.0.0.1:8080:8080 llmprof
# Publish the port on loopback, or to a proxy that speaks TLS; LLMPROF__SERVER__TLS__CERTIFICATE and
# __KEY serve TLS from the container, with LLMPROF__SERVER__BEHIND_PROXY=false.
# Base images are pinned by the digests of their multi-architecture indexes.
ARG RUST=rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082
ARG BUILD_BASE=debian:bookworm@sha256:30482e873082e906a4908c10529180aefb6f77620aea7404b909829fadc5d168
ARG BASE=debian:bookworm-slim@sha256:4724b8cc51e33e398f0e2e15e18d5ec2851ff0c2280647e1310bc1642182655d

# hadolint ignore=DL3006
FROM ${RUST} AS rust

# hadolint ignore=DL3006
FROM ${BUILD_BASE} AS build
ARG VARIANT=cpu
ARG PROFILE=dist
# A mounted folder with both programs, which takes the place of the build.
ARG PROGRAMS=
# Generation of the GPUs that kernels are compiled for: 80 A100, 90 H100 and H200.
ARG CUDA_COMPUTE_CAP=90
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates pkg-config \
    && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
# Cargo recompiles what it built at other paths: CI, which mounts its builds, names its own.
ARG SOURCE=/src
ARG CARGO_HOME=/usr/local/cargo CARGO_TARGET_DIR=$SOURCE/target
ENV CARGO_HOME=$CARGO_HOME CARGO_TARGET_DIR=$CARGO_TARGET_DIR RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:/usr/local/cuda/bin:$PATH
WORKDIR $SOURCE
COPY . .
# The service is built without the feature `cuda`, so that it starts where there is no driver.
RUN built=$CARGO_TARGET_DIR/$PROFILE && if [ "$PROFILE" = dev ]; then built=$CARGO_TARGET_DIR/debug; fi \
    && if [ -n "$PROGRAMS" ]; then install --strip "$PROGRAMS"/llmprof "$PROGRAMS"/model-runner /opt && exit; fi \
    && if [ "$VARIANT" = cuda ]; then set -- --no-default-features --features service; fi \
    && cargo build --locked --package llmprof --profile "$PROFILE" "$@" && install --strip "$built/llmprof" /opt/llmprof \
    && if [ "$VARIANT" = cuda ]; then \
        CUDA_COMPUTE_CAP="$CUDA_COMPUTE_CAP" cargo build --locked --package llmprof --profile "$PROFILE" --no-default-features --features cuda; \
    fi \
    && install --strip "$built/model-runner" /opt/model-runner

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
