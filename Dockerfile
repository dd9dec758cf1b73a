# The packages of tools/build_debian in an image: flare-tcp-proxy, flare-press
# and the other programs.
#
#   docker build -t flare .
#   docker run -v $PWD/proxy.yaml:/etc/flare/tcp-proxy.yaml -p 8080:8080 flare
FROM debian:12 AS build
# --build-arg DEB_BUILD_OPTIONS=noopt builds without optimisation.
ARG DEB_BUILD_OPTIONS=
COPY . /flare
WORKDIR /flare
RUN tools/build_debian /packages

FROM debian:12-slim
COPY --from=build /packages /packages
RUN apt-get update && \
    apt-get install -y --no-install-recommends \
      /packages/libflare1_*.deb /packages/flare-tools_*.deb && \
    rm -rf /packages /var/lib/apt/lists/*
USER nobody
CMD ["flare-tcp-proxy", "--config=/etc/flare/tcp-proxy.yaml"]
