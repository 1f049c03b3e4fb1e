# What is run often. Everything else is plain cargo.
CARGO ?= cargo
DATA ?= ./data
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: run build test torture kills seeds flow bench fmt clippy doc

## Build a release and start one node with its data in ./data.
run: build
	@exec $(TARGET)/release/anabranch serve --data $(DATA) $(ARGS)

build:
	$(CARGO) build --release --locked -p anabranch

## Install what the tests need when it is missing, then run every test.
test:
	tests/setup.sh
	CARGO="$(CARGO)" tests/run.sh

## The long runs: ROUNDS kills of the node under load, for each of three tests, and SEEDS seeds of the simulations from
## FROM on. What is done is noted in TARGET: stopped, the same command goes on where it was.
torture: kills seeds

ROUNDS ?= 200
kills:
	tests/setup.sh
	mkdir -p $(TARGET)/torture-kills
	ANABRANCH_KILL_ROUNDS=$(ROUNDS) ANABRANCH_KILL_PROGRESS=$(abspath $(TARGET)/torture-kills) CARGO="$(CARGO)" \
		tests/run.sh -p anabranch-tests --test kill_loop
	rm -r $(TARGET)/torture-kills

## The seeded simulations of a group and a data shard over a disk that crashes, tears, fails, fills up, lies and rots.
SEEDS ?= 2000
FROM ?= 0
seeds:
	ANABRANCH_SEEDS=$(SEEDS) ANABRANCH_FROM=$(FROM) ANABRANCH_SEED_PROGRESS=$(abspath $(TARGET)/torture-seeds) \
		$(CARGO) test --release --locked -p anabranch-store --test sim --test shard_sim -- --nocapture
	rm -r $(TARGET)/torture-seeds

## One old message, while TIMES (20) times LIMIT_MIB (2048) flow past: what the folder takes stays below the limit.
## The long run is `make flow LIMIT_MIB=51200` (1 TiB is written). Stopped, it goes on where it was with the same FLOW_DIR.
FLOW_DIR ?= $(TARGET)/flow-$(or $(LIMIT_MIB),2048)
flow:
	ANABRANCH_FLOW_LIMIT_MIB=$(or $(LIMIT_MIB),2048) ANABRANCH_FLOW_TIMES=$(or $(TIMES),20) ANABRANCH_FLOW_DIR=$(abspath $(FLOW_DIR)) \
		$(CARGO) test --release --locked -p anabranch-store --test flow -- --nocapture
	rm -r $(FLOW_DIR)

## Beside Mosquitto and RabbitMQ, in one interleaved run; see bench/README.md.
bench:
	$(CARGO) build --release --locked -p anabranch -p anabranch-bench
	$(TARGET)/release/anabranch-bench $(or $(ARGS),compare)

fmt:
	$(CARGO) fmt --all

clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

## Private items too: they are documented for maintainers.
doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items --locked --quiet
