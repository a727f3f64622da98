# softiser: block storage over RDMA without RDMA hardware. `make` lists the targets.

GO      ?= go
SHELL   := /bin/bash
BIN     := bin
LDFLAGS := -s -w -X main.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
SUM     := $(GO) tool gotestsum --format pkgname-and-test-fails

.PHONY: help build test race fuzz lint demo bench bench-quick bench-go bench-compare bench-baseline interop interop-short bench-lvm conformance conformance-short soak soak-short cover tools clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/iser-target and bin/iser-initiator (static)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/iser-target ./cmd/iser-initiator

test: ## run every test (outside clients are used where they are installed; see make tools)
	$(SUM) --packages ./... -- -vet=off -timeout 15m

# The rules of internal/lint read files, in one goroutine.
race: ## run every test under the race detector, those that are long in their short forms
	CGO_ENABLED=1 $(SUM) --packages "$$($(GO) list ./... | grep -v /internal/lint)" -- -vet=off -race -short -timeout 20m

FUZZTIME ?= 20s
fuzz: ## run each fuzz target for FUZZTIME (20s; 500x for a count of executions)
	GO="$(GO)" FUZZTIME="$(FUZZTIME)" .ci/fuzz

lint: ## gofmt, go vet and the repository's own rules
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) test ./internal/lint

demo: build ## serve a volume from a config file, discover, verify, measure, clean up
	docs/demo.sh

bench-quick: build ## iSER beside our TCP, iperf3 and one peer, in under three minutes
	$(GO) run ./benchmarks quick

bench: build ## the whole comparison with peers from Debian (about 22 minutes); writes benchmarks/results and its README
	$(GO) run ./benchmarks full

# BENCHPKG, BENCHTIME and BENCHCOUNT choose less or more.
BENCHPKG   ?= ./...
BENCHTIME  ?= 100ms
BENCHCOUNT ?= 6
bench-go: ## Go benchmarks of every layer into build/bench.txt, benchstat-ready (about 4 minutes)
	@mkdir -p build
	$(GO) run ./benchmarks machine > build/bench.txt
	@echo "commit: $$(git describe --always --dirty 2>/dev/null)" >> build/bench.txt
	set -o pipefail; $(GO) test -short -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(BENCHCOUNT) -timeout 30m $(BENCHPKG) | grep -v 'no test files' | tee -a build/bench.txt

bench-compare: bench-go ## the same beside benchmarks/baseline.txt, by benchstat
	$(GO) tool benchstat -table pkg benchmarks/baseline.txt build/bench.txt

bench-baseline: bench-go ## the same as the new benchmarks/baseline.txt
	cp build/bench.txt benchmarks/baseline.txt

interop: build ## the whole matrix against Linux kernels in QEMU guests; writes docs/INTEROP.md (ARGS=-again goes on with a run)
	$(GO) run ./interop run $(ARGS)

interop-short: build ## one guest, the essential cases
	$(GO) run ./interop run -short

bench-lvm: build ## snapshots and thin volumes against device-mapper's, in one guest
	$(GO) run ./interop run -run '^lvm/overhead$$' && cat out/interop/overhead.md

NEWER ?= -newer
conformance: build ## libiscsi's test suite, two versions, on every kind of backend
	$(GO) run ./interop/conformance $(NEWER)

conformance-short: build ## its short form
	$(GO) run ./interop/conformance -short

soak: build ## half an hour of kills, cuts, full disks, power cuts and hostile peers; nothing acknowledged is lost
	$(GO) run ./interop/soak $(ARGS)

soak-short: build ## each of them once
	$(GO) run ./interop/soak -short

cover: ## coverage by package
	$(GO) test -coverprofile=build/cover.out ./... | awk '{print $$2, $$5}' && $(GO) tool cover -func=build/cover.out | tail -1

tools: ## install the outside clients that the tests use (Debian, root)
	.ci/tools

clean: ## remove what was built
	rm -rf $(BIN) build out
