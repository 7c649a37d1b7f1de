# `make help` lists the targets. scripts/deps.sh installs the Debian packages that a
# target needs, as root, and lists them before.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=

# Paths below PREFIX that systemd and the shells search by default. (Below /usr,
# Debian's zsh searches share/zsh/vendor-completions.)
UNIT            := lib/systemd/system/dcol.service
USERS           := lib/sysusers.d/dcol.conf
PROBE_UNITS     := lib/systemd/system/dcol-probe@.service lib/systemd/system/dcol-probe@.timer
BASH_COMPLETION := share/bash-completion/completions/dcol
ZSH_COMPLETION  ?= share/zsh/site-functions/_dcol
FISH_COMPLETION := share/fish/vendor_completions.d/dcol.fish
COMPLETIONS     := $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)
MANUALS         := share/man/man1
# The texts that help and manual pages name.
DOCUMENTS       := share/doc/dcol

# The program to install, and one of this host's architecture that prints completions and manual pages.
DCOL  ?= bin/dcol
TEXTS ?= $(DCOL)

# $(call systemd,COMMAND) runs COMMAND when installing on a host with systemd,
# but not when building a package.
systemd = @[ -n '$(DESTDIR)' ] || ! [ -d /run/systemd/system ] || $(1)

# Property tests use this seed, so that failures can be repeated. `make nightly-rapid`
# uses random seeds.
export RAPID_SEED ?= 1

# scripts/deps.sh fetches Go into .cache/go if the machine's own is too old. After plain su,
# a root shell has no sbin in its path. /usr/local/go, where Go installs itself, is often
# in no path.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

# All go commands, including those of tests, use the same flags and so share the build cache.
export GOFLAGS := $(GOFLAGS) -trimpath

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BUILD   := CGO_ENABLED=0 $(GO) build -ldflags '-s -w -X main.version=$(VERSION)'

# Tests mostly wait, so more of them run at once than there are processors. Without atexit_sleep_ms, programs
# built with -race sleep for a second before they exit, and every host of a test's network is such a program.
# The lab's tests use more processor time than others, so fewer of its packages run at once. The longest packages
# start first, so that none of them runs alone at the end.
#
# Tests on a real kernel share the machine with strangers. A test that fails is run again, alone, up to RERUNS
# times, and the summary lists it in any case. More than five failures, a data race or a panic end the run.
RERUNS ?= 2
RACE   := GORACE=atexit_sleep_ms=0 CGO_ENABLED=1
PLAIN  := CGO_ENABLED=0
TESTS  := .cache/bin/gotestsum --format pkgname-and-test-fails \
	--hide-summary skipped --rerun-fails=$(RERUNS) --rerun-fails-run-root-test --rerun-fails-max-failures=5 \
	--rerun-fails-abort-on-data-race
ONCE   := -vet=off -count=1 -parallel=6 -timeout=15m

# These packages start no goroutine, and simulate for long. The race detector would find nothing, and take several times as long.
SIMULATED := ./internal/path ./internal/path/measure ./internal/kernel/bpf/cc
LONG      := ./internal/waypoint ./internal/mptcpify

.DEFAULT_GOAL := help

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-zA-Z0-9_%-]+:.*## / {sub(/%/, "NAME", $$1); printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/dcol and bin/dcol-lab.
	@scripts/deps.sh build
	$(BUILD) -o bin/ ./cmd/dcol ./cmd/dcol-lab

demo: ## Show the main job in a network of namespaces (root, under 90 s).
	@scripts/deps.sh demo
	@$(MAKE) --no-print-directory build
	bin/dcol-lab demo

test: ## Check the format, vet, and run every test with the race detector (root).
	@scripts/deps.sh test
	@scripts/format.sh
	$(PLAIN) $(GO) vet ./...
	@[ "$$(id -u)" = 0 ] || echo 'test: not root: the tests that need namespaces are skipped' >&2
	$(RACE) $(TESTS) --packages="$(LONG) $$($(GO) list ./... | grep -v /lab/ | grep -vxF "$$($(GO) list $(SIMULATED))" | tr '\n' ' ')" -- -race $(ONCE) -p=3
	$(PLAIN) $(TESTS) --packages='$(SIMULATED)' -- $(ONCE)
	$(RACE) $(TESTS) --packages='./lab/e2e ./lab/...' -- -race $(ONCE)
	$(PLAIN) $(GO) test -count=1 -timeout=15m -run '^TestSimulated' \
		$$(grep -rl --include='*_test.go' 'racetest\.Skip(' ./internal ./lab | xargs -n1 dirname | sort -u)
	@echo 'test: measures a few runs; skipped if the machine is too busy for that' >&2
	$(PLAIN) $(GO) test -count=1 -timeout=15m -run TestRegression ./lab/scenarios -measure

test-awkward: ## Run the tests on a host made awkward on purpose (root, nightly).
	@scripts/deps.sh test
	scripts/test-awkward.sh

test-roots: ## Run the tests in a bare Debian 12 and 13 with git and make alone (root, 40 minutes).
	@scripts/deps.sh test-roots
	scripts/test-roots.sh

test-metrics: ## Check the metrics and alert rules with Debian's Prometheus.
	@scripts/deps.sh test-metrics
	$(GO) test -count=1 -v -run 'Prom|Dashboard' ./internal/metrics

test-kernels: ## Run the tests on Debian's kernels 6.1 and 6.12, emulated (root, an hour).
	@scripts/deps.sh test-kernels
	scripts/test-kernels.sh

test-kernels-%: ## Run them on one kernel, as in: make test-kernels-6.12 RUN=TestTLS.
	@scripts/deps.sh test-kernels
	scripts/test-kernels.sh $*

bench: ## Run every benchmark (root); writes out/bench/result.json.
	@scripts/deps.sh bench
	-@scripts/haproxy.sh
	@$(MAKE) --no-print-directory build
	bin/dcol-lab bench

bench-%: ## Run one, as in: make bench-wire, bench-collective MEMBERS=500, bench-selection REPETITIONS=3 PLACES=stream, bench-transport REPETITIONS=10.
	@scripts/deps.sh bench
	$(if $(filter convert,$*),-@scripts/haproxy.sh)
	@$(MAKE) --no-print-directory build
	bin/dcol-lab bench $* $(if $(MEMBERS),--members $(MEMBERS)) $(if $(REPETITIONS),--repetitions $(REPETITIONS)) \
		$(if $(MESSAGES),--messages $(MESSAGES)) $(if $(PLACES),--places '$(PLACES)')

chaos: ## Strike worlds with FAULTS (200) random faults of SEED (1) (root); writes out/chaos/result.json.
	@scripts/deps.sh test
	@$(MAKE) --no-print-directory build
	bin/dcol-lab chaos --faults $(or $(FAULTS),200) --seed $(or $(SEED),1) $(if $(WORLDS),--worlds $(WORLDS))

chaos-bites: ## Undo five fixes, one at a time, and show that 200 faults of chaos find each (root, minutes each).
	@scripts/deps.sh test
	scripts/chaos-bites.sh

paper: ## Repeat the papers' evaluation (root, some 20 minutes); writes out/paper/report.html.
	@scripts/deps.sh paper
	@$(MAKE) --no-print-directory build
	bin/dcol-lab run papers/dcol

battery: ## Run the battery of MPTCP tests against all implementations (root; for one of them some 6 minutes on two idle processors); writes out/battery/battery.html.
	@$(MAKE) --no-print-directory build
	bin/dcol-lab run battery

deb: ## Build Debian packages of dcol and dcol-lab for amd64 and arm64 into out/deb.
	@scripts/deps.sh deb
	rm -f out/deb/*.deb
	scripts/deb.sh

test-deb: ## Install, upgrade, remove and purge the packages in a bare Debian 12 and 13; lintian (root, nightly).
	@scripts/deps.sh test-deb
	scripts/test-deb.sh

lint: build ## Run golangci-lint, with the import law, and check scripts and texts.
	@scripts/deps.sh lint
	CGO_ENABLED=0 .cache/bin/golangci-lint run ./...
	$(GO) mod tidy -diff
	shellcheck scripts/*.sh scripts/lib/* scripts/kernels/* .ci/run
	scripts/check-docs.sh

fuzz: ## Run every fuzz target for FUZZTIME (10s).
	@scripts/deps.sh build
	scripts/fuzz.sh $(or $(FUZZTIME),10s)

nightly-rapid: ## Run every property test with ROUNDS (20) random seeds and the race detector; keeps what fails (root).
	@scripts/deps.sh test
	scripts/rapid.sh $(or $(ROUNDS),20)

nightly-tshark: ## Capture every scenario in its shortest form and compare each packet with tshark's fields (root, some 15 minutes).
	@scripts/deps.sh nightly-tshark
	$(GO) test -count=1 -v -timeout=2h -run TestScenariosAsTshark ./lab/scenarios -dissect

nightly-libconvert: ## Test the converter with another client of RFC 8803, Tessares' libconvert, built in FOLDER, a temporary one by default (root).
	@scripts/deps.sh nightly-libconvert
	scripts/libconvert.sh $(FOLDER)

docs: ## Make web pages of the texts, which open without a network; writes out/docs/index.html.
	@scripts/deps.sh build
	$(GO) run ./docs/site out/docs

recording: ## Record the terminals and the page of README.md again, from a real run (root).
	@scripts/deps.sh recording
	@$(MAKE) --no-print-directory build
	$(GO) run ./docs/recording docs/img

cover: ## Measure what the tests reach (root); writes out/cover.html.
	@scripts/deps.sh test
	@mkdir -p out
	$(GO) test -count=1 -timeout=10m -coverpkg=./... -coverprofile=out/cover.out ./...
	$(GO) tool cover -html=out/cover.out -o out/cover.html
	@$(GO) tool cover -func=out/cover.out | tail -n 1

arm64: ## Check that everything also builds for arm64.
	@scripts/deps.sh build
	GOARCH=arm64 $(BUILD) -o bin/dcol-arm64 ./cmd/dcol
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...

generate: ## Compile the eBPF programs again, with Debian 12's clang-14.
	@scripts/deps.sh generate
	$(GO) generate ./internal/kernel/bpf/...

check-generate: ## Fail if the committed eBPF objects are not what their source gives.
	@scripts/deps.sh generate
	scripts/check-generate.sh

# install only builds if necessary, so that root builds nothing in `make build && sudo make install`.
install: ## Install bin/dcol, its systemd unit, texts, manual pages and shell completions below PREFIX.
	@[ -x '$(DCOL)' ] || $(MAKE) --no-print-directory build
	install -D -m 755 '$(DCOL)' '$(DESTDIR)$(PREFIX)/bin/dcol'
	install -d '$(DESTDIR)/etc/dcol' $(foreach file,$(UNIT) $(COMPLETIONS),'$(DESTDIR)$(PREFIX)/$(dir $(file))')
	sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/dcol.service > '$(DESTDIR)$(PREFIX)/$(UNIT)'
	install -D -m 644 packaging/dcol.sysusers '$(DESTDIR)$(PREFIX)/$(USERS)'
	$(foreach unit,$(PROBE_UNITS),sed 's|@BINDIR@|$(PREFIX)/bin|' 'packaging/$(notdir $(unit))' > '$(DESTDIR)$(PREFIX)/$(unit)';)
	$(TEXTS) completion bash > '$(DESTDIR)$(PREFIX)/$(BASH_COMPLETION)'
	$(TEXTS) completion zsh > '$(DESTDIR)$(PREFIX)/$(ZSH_COMPLETION)'
	$(TEXTS) completion fish > '$(DESTDIR)$(PREFIX)/$(FISH_COMPLETION)'
	$(TEXTS) man '$(DESTDIR)$(PREFIX)/$(MANUALS)' >/dev/null
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)' README.md
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)/docs' docs/*.md
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)/docs/img' docs/img/*
	$(call systemd,systemd-sysusers '$(PREFIX)/$(USERS)')
	$(call systemd,systemctl daemon-reload)

uninstall: ## Stop the agent, undo what it did to the host, remove what install wrote.
	$(call systemd,systemctl disable --now dcol.service)
	[ -n '$(DESTDIR)' ] || ! [ -x '$(PREFIX)/bin/dcol' ] || '$(PREFIX)/bin/dcol' down
	rm -f $(foreach file,bin/dcol $(UNIT) $(USERS) $(PROBE_UNITS) $(COMPLETIONS) $(MANUALS)/dcol.1,'$(DESTDIR)$(PREFIX)/$(file)')
	rm -f '$(DESTDIR)$(PREFIX)/$(MANUALS)'/dcol-*.1
	rm -rf '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)'
	$(call systemd,systemctl daemon-reload)
	@echo 'kept: /etc/dcol, /var/lib/dcol, /var/log/dcol, and the user dcol if it was made' >&2

clean: ## Remove bin, out and the tools in .cache.
	rm -rf bin out .cache

.PHONY: help build demo test test-metrics test-awkward test-roots test-deb test-kernels deb battery bench chaos chaos-bites paper lint fuzz nightly-rapid nightly-tshark nightly-libconvert docs recording cover arm64 generate check-generate install uninstall clean
