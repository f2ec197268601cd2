# An image with the program `rollpacker` and libtorch for the CPU. docs/install.md describes it.
#
#   docker build --tag rollpacker .
#   docker run --rm --volume "$PWD:/work" rollpacker train --config configs/chain.toml

FROM rust:1.95-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes python3 python3-pip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# libtorch changes less often than the sources, so it has a layer of its own.
COPY .cargo .cargo
RUN python3 .cargo/libtorch.py
COPY . .
RUN cargo build --release --locked && python3 .cargo/dist.py target/release/rollpacker /opt/rollpacker

FROM debian:bookworm-slim
# Python runs the rewards `code` and `python`.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes ca-certificates libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/rollpacker /opt/rollpacker
RUN ln -s /opt/rollpacker/bin/rollpacker /usr/local/bin/rollpacker
WORKDIR /work
ENTRYPOINT ["rollpacker"]
CMD ["--help"]
