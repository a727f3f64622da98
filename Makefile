# softiser: block storage over RDMA without RDMA hardware. `make` lists the targets.

GO      ?= go
SHELL   := /bin/bash
BIN     := bin
LDFLAGS := -s -w -X main.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
SUM     := $(GO) tool gotestsum --format pkgname-and-test-fails

.PHONY: help build compile test race fuzz lint demo bench bench-quick bench-go bench-once bench-compare bench-counts bench-baseline bench-loss bench-upgrade idle-sessions interop interop-short bench-lvm conformance conformance-short docs man deb deb-reproducible image soak soak-short ha ha-short s3 arm64 systemd systemd-boot ipxe cover tools clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/iser-target and bin/iser-initiator (static)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/iser-target ./cmd/iser-initiator

# Tests wait for sockets, processes and timers more than they compute: with twice as many
# packages at a time as processors those are busy, under the race detector with half as many more.
CPUS := $(shell nproc)
TESTFLAGS = -vet=off -p $$(($(CPUS) * 2)) -timeout 15m # also of lint, whose result is Go's to keep
test: ## run every test (outside clients are used where they are installed; see make tools)
	$(SUM) --packages ./... -- $(TESTFLAGS)

# The rules of internal/lint read files, in one goroutine. At its exit the detector would give
# goroutines that are left a second, in every test binary and in every process that a test
# starts; internal/leaktest sees to it that there are none. Shadow memory of more than the
# threshold (64 KiB, if nothing is said) is not cleared but mapped anew, and then every page faults:
# lvm/snap took 29 s of processor time where it takes 10.
RACE = CGO_ENABLED=1 GORACE="atexit_sleep_ms=20 clear_shadow_mmap_threshold=16777216 $$GORACE"
RACEPKGS = $$($(GO) list ./... | grep -v /internal/lint)
race: ## run every test under the race detector, those that are long in their short forms
	$(RACE) $(SUM) --packages "$(RACEPKGS)" -- -vet=off -race -short -p $$((($(CPUS) * 3 + 1) / 2)) -timeout 20m

# Tests are linked each time they are run, so nothing is linked here.
COMPILE = -vet=off -run '^$$' -exec true -toolexec $(CURDIR)/.ci/nolink
compile: ## compile what race, fuzz and test run, into Go's cache
	$(SUM) --version >/dev/null
	$(RACE) $(GO) test $(COMPILE) -race $(RACEPKGS) >/dev/null
	$(GO) test $(COMPILE) ./... >/dev/null

FUZZTIME ?= 20s
fuzz: ## run each fuzz target for FUZZTIME (20s; 500x for a count of executions)
	GO="$(GO)" FUZZTIME="$(FUZZTIME)" .ci/fuzz

lint: ## gofmt, go vet and the repository's own rules
	@test -z "$$(gofmt -l . | tee -a /dev/stderr)"
	$(GO) vet ./...
	$(SUM) --packages ./internal/lint -- $(TESTFLAGS)

demo: build ## serve a volume from a config file, discover, verify, measure, clean up
	docs/demo.sh

bench-quick: build ## iSER beside our TCP, iperf3 and one peer, in under three minutes
	$(GO) run ./benchmarks quick

bench: build ## the whole comparison with peers from Debian (about 40 minutes); writes benchmarks/results and its README
	$(GO) run ./benchmarks full

bench-loss: ## RoCE over a lossy way, in a time of its own (seconds); writes benchmarks/results/roce-loss*.csv and a plot
	for t in rc uc ud; do $(GO) test -count=1 -run '^TestLossCurve$$' ./rdma/internal/roce/$$t -curve $(CURDIR)/benchmarks/results/roce-loss-$$t.csv || exit 1; done
	$(GO) run ./benchmarks loss benchmarks/results/roce-loss-rc.csv benchmarks/results/roce-loss-uc.csv benchmarks/results/roce-loss-ud.csv benchmarks/img/roce-loss.svg

# BENCHPKG, BENCHTIME and BENCHCOUNT choose less or more.
BENCHPKG   ?= ./...
BENCHTIME  ?= 100ms
BENCHCOUNT ?= 6
bench-go: ## Go benchmarks of every layer into build/bench.txt, benchstat-ready (about 4 minutes)
	@mkdir -p build
	$(GO) run ./benchmarks machine > build/bench.txt
	@echo "commit: $$(git describe --always --dirty 2>/dev/null)" >> build/bench.txt
	set -o pipefail; $(GO) test -short -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(BENCHCOUNT) -timeout 30m $(BENCHPKG) | grep -v 'no test files' | tee -a build/bench.txt

BENCHED = $(sort $(dir $(shell grep -rlE '^func Benchmark' --include='*_test.go' .)))
bench-once: ## every Go benchmark, one turn each: that all of them still end (some ten seconds)
	@out=$$($(GO) test -vet=off -short -run '^$$' -bench . -benchtime 1x -timeout 5m $(BENCHED)) || { echo "$$out"; exit 1; }

# Baselines are by kind of processor: times of another kind say nothing. Counts travel.
KIND = $(shell $(GO) run ./benchmarks kind)
bench-compare: bench-go build ## the same beside benchmarks/baseline.KIND.txt, by benchstat, and bench-counts
	@test -e benchmarks/baseline.$(KIND).txt || { echo "there is no baseline of this kind of processor: make bench-baseline makes benchmarks/baseline.$(KIND).txt"; exit 1; }
	$(GO) tool benchstat -table pkg benchmarks/baseline.$(KIND).txt build/bench.txt
	$(GO) run ./benchmarks counts

bench-counts: build ## system calls, allocations, instructions per operation beside benchmarks/baseline.counts.txt (half a minute)
	$(GO) run ./benchmarks counts

bench-baseline: bench-go build ## the same as the new benchmarks/baseline.KIND.txt, and the counts as those to compare with
	cp build/bench.txt benchmarks/baseline.$(KIND).txt
	$(GO) run ./benchmarks counts --write

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

ha: build ## iser-target under Pacemaker, in namespaces: killed, moved, cut off, turned off, under load (ARGS='-for 1h -seed 7': at random)
	$(GO) run ./interop/ha $(ARGS)

ha-short: build ## three nodes, a killed target and a power cut
	$(GO) run ./interop/ha -short

s3: build ## exports to a real S3 server (versitygw, through the Go module proxy), imports and comparisons
	interop/s3/run

ipxe: build ## an emulated machine boots from a target by iPXE, with CHAP
	interop/ipxe/run

arm64: ## both programs and the tests of what depends on the processor, as arm64 binaries under qemu-user
	interop/arm64/run

systemd: build ## the packages under a real systemd, in a container: READY, reload, upgrade under load, watchdog, socket activation (root)
	packaging/systemd/run

systemd-boot: ## an emulated machine boots with both packages: attachments by NBD and ublk come up behind the target, and stay through upgrades (root)
	packaging/systemd/boot

idle-sessions: ## 10,000 sessions that do nothing, each end in a process of 10,200 descriptors (root, or as many; CI has 200)
	SOFTISER_IDLE_SESSIONS=10000 $(GO) test -count=1 -timeout 10m -run '^TestIdleSessions$$' -v ./target/iscsi

bench-upgrade: ## pauses of UPGRADES upgrades for each wire under verified load: median, 99th percentile and longest, of the target and as the initiators saw them
	TARGET_TEST_UPGRADES=$(or $(UPGRADES),100) $(GO) test -count=1 -timeout 30m -run '^(TestUpgrade(Sessions|ISER|Controllers|NVMeRDMA|Logical|Many)|TestTargetUpgradedUnderFio)$$' -v ./cmd/iser-target ./initiator/attach | grep -E '^(---|===|ok|FAIL)|^ +---|upgrades:|pause|fio has'

docs: ## write docs/CONFIGURATION.md, which is made of the model
	$(GO) test -count=1 -run '^TestReferenceIsOfTheModel$$' ./config -write-reference

EPOCH = $(shell git log -1 --format=%ct)
man: ## man pages of every command into build/man
	@rm -rf build/man && mkdir -p build/man
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) test -count=1 -run '^TestManPages$$' ./cmd/iser-target ./cmd/iser-initiator -man $(CURDIR)/build/man

IMAGEVERSION = $(subst ~,-,$(VERSION))
VERSION ?= 0.1.0~git$(shell TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h)
deb: build man ## Debian packages of both programs into build/deb; the same sources make the same bytes
	SOURCE_DATE_EPOCH=$(EPOCH) packaging/deb/build $(VERSION) build/deb

deb-reproducible: ## two clones in different folders make the same packages
	packaging/deb/reproducible

image: ## an OCI image of both programs for amd64 and arm64, build/image.tar, without a daemon; the same sources make the same bytes
	for arch in amd64 arm64; do \
	  CGO_ENABLED=0 GOARCH=$$arch $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/image/$$arch/ ./cmd/iser-target ./cmd/iser-initiator || exit 1; \
	done
	SOURCE_DATE_EPOCH=$(EPOCH) $(GO) run ./packaging/image -version '$(IMAGEVERSION)' -revision $(shell git rev-parse HEAD) \
	  -out build/image.tar amd64=build/image/amd64 arm64=build/image/arm64

cover: ## coverage by package
	$(GO) test -coverprofile=build/cover.out ./... | awk '{print $$2, $$5}' && $(GO) tool cover -func=build/cover.out | tail -1

tools: ## install the outside clients that the tests use (Debian, root)
	.ci/tools

clean: ## remove what was built
	rm -rf $(BIN) build out
