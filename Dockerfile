# Builds petstore from source into an image with nothing but the binary and the few files that it needs: no shell, no package
# manager, no root. `docker compose up` runs it; docs/deploy.md has the commands without Compose.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --locked --package bin --features servers --release && docs/deploy/collect-image /image

FROM scratch
COPY --from=build --chown=0:0 /image/root/ /
COPY --from=build --chown=65532:65532 /image/data/ /var/lib/

USER 65532:65532
WORKDIR /var/lib/petstore
VOLUME ["/var/lib/petstore"]
# Inside the container the service listens on every address; publish the port only to a proxy that terminates TLS.
ENV PETSTORE_LISTEN=0.0.0.0:8080 \
    PETSTORE_INSECURE_HTTP=true \
    PETSTORE_ADMIN_LISTEN=0.0.0.0:9080 \
    PETSTORE_STORE=sled:/var/lib/petstore/log \
    PETSTORE_KEYS=/var/lib/petstore/keys.toml
EXPOSE 8080 9080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=15m CMD ["/usr/bin/petstore", "health", "http://127.0.0.1:9080"]
ENTRYPOINT ["/usr/bin/petstore"]
CMD ["serve"]
