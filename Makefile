# `make help` lists the targets. Targets that need more than Go, git and make
# install it by name from Debian, as root, and say so first: scripts/deps.sh.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=

# Below PREFIX, where systemd and the shells look by themselves. (Below /usr,
# Debian's zsh looks in share/zsh/vendor-completions.)
UNIT            := lib/systemd/system/dcol.service
BASH_COMPLETION := share/bash-completion/completions/dcol
ZSH_COMPLETION  ?= share/zsh/site-functions/_dcol
FISH_COMPLETION := share/fish/vendor_completions.d/dcol.fish
COMPLETIONS     := $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)

# $(call systemd,COMMAND) runs COMMAND if this is an installation into a host
# that systemd runs, and not into a package's tree.
systemd = @[ -n '$(DESTDIR)' ] || ! [ -d /run/systemd/system ] || $(1)

# Property tests draw from this seed, so that a failure can be repeated. `make nightly-rapid`
# draws from many others.
export RAPID_SEED ?= 1

# scripts/deps.sh fetches Go into .cache/go where the machine's own is too old. A root
# shell that came by plain su has no sbin in its path; Go's own installation is
# often in nobody's.
export PATH := $(CURDIR)/.cache/go/bin:$(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

# For every go command, those of the tests too: so all steps share what is compiled.
export GOFLAGS := $(GOFLAGS) -trimpath

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BUILD   := CGO_ENABLED=0 $(GO) build -ldflags '-s -w -X main.version=$(VERSION)'

# Tests mostly wait, so more of them run at a time than there are processors. Programs built with
# -race, as every host of a test's network is, would sleep for a second before they end.
# The lab's own tests keep the processors busier than others do, so fewer of its packages run at once, the
# longest first.
RACE := GORACE=atexit_sleep_ms=0 CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -parallel=6

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
	CGO_ENABLED=0 $(GO) vet ./...
	@[ "$$(id -u)" = 0 ] || echo 'test: not root: the tests that need namespaces are skipped' >&2
	$(RACE) -timeout=15m -p=4 $$($(GO) list ./... | grep -v /lab/)
	$(RACE) -timeout=15m ./lab/e2e ./lab/...
	@echo 'test: measures a few runs; skipped if the machine is too busy for that' >&2
	CGO_ENABLED=0 $(GO) test -count=1 -timeout=15m -run TestRegression ./lab/scenarios -measure

test-awkward: ## Run the tests on a host made awkward on purpose (root, nightly).
	@scripts/deps.sh test
	scripts/test-awkward.sh

test-kernels: ## Run the tests on Debian's kernels 6.1 and 6.12, emulated (root, an hour).
	@scripts/deps.sh test-kernels
	scripts/test-kernels.sh

test-kernels-%: ## Run them on one kernel, as in: make test-kernels-6.12 RUN=TestTLS.
	@scripts/deps.sh test-kernels
	scripts/test-kernels.sh $*

bench: ## Run every benchmark (root); writes out/bench/result.json.
	@scripts/deps.sh bench
	@$(MAKE) --no-print-directory build
	bin/dcol-lab bench

bench-%: ## Run one, as in: make bench-wire, make bench-collective MEMBERS=500.
	@scripts/deps.sh bench
	@$(MAKE) --no-print-directory build
	bin/dcol-lab bench $* $(if $(MEMBERS),--members $(MEMBERS))

chaos: ## Strike worlds with FAULTS (200) random faults of SEED (1) (root); writes out/chaos/result.json.
	@scripts/deps.sh test
	@$(MAKE) --no-print-directory build
	bin/dcol-lab chaos --faults $(or $(FAULTS),200) --seed $(or $(SEED),1) $(if $(WORLDS),--worlds $(WORLDS))

paper: ## Repeat the papers' evaluation (root, some 20 minutes); writes out/paper/report.html.
	@scripts/deps.sh paper
	@$(MAKE) --no-print-directory build
	bin/dcol-lab run papers/dcol

lint: build ## Run golangci-lint, with the import law, and check scripts and texts.
	@scripts/deps.sh lint
	CGO_ENABLED=0 .cache/bin/golangci-lint run ./...
	$(GO) mod tidy -diff
	shellcheck scripts/*.sh scripts/kernels/* .ci/run
	scripts/check-docs.sh

fuzz: ## Run every fuzz target for FUZZTIME (10s).
	@scripts/deps.sh build
	scripts/fuzz.sh $(or $(FUZZTIME),10s)

nightly-rapid: ## Run every property test with ROUNDS (20) random seeds and the race detector; keeps what fails (root).
	@scripts/deps.sh test
	scripts/rapid.sh $(or $(ROUNDS),20)

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

# Without a build of its own: so `make build && sudo make install` has root build nothing.
install: ## Install bin/dcol, its systemd unit and shell completions below PREFIX.
	@[ -x bin/dcol ] || $(MAKE) --no-print-directory build
	install -D -m 755 bin/dcol '$(DESTDIR)$(PREFIX)/bin/dcol'
	install -d '$(DESTDIR)/etc/dcol' $(foreach file,$(UNIT) $(COMPLETIONS),'$(DESTDIR)$(PREFIX)/$(dir $(file))')
	sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/dcol.service > '$(DESTDIR)$(PREFIX)/$(UNIT)'
	bin/dcol completion bash > '$(DESTDIR)$(PREFIX)/$(BASH_COMPLETION)'
	bin/dcol completion zsh > '$(DESTDIR)$(PREFIX)/$(ZSH_COMPLETION)'
	bin/dcol completion fish > '$(DESTDIR)$(PREFIX)/$(FISH_COMPLETION)'
	$(call systemd,systemctl daemon-reload)

uninstall: ## Stop the agent, undo what it did to the host, remove what install wrote.
	$(call systemd,systemctl disable --now dcol.service)
	[ -n '$(DESTDIR)' ] || ! [ -x '$(PREFIX)/bin/dcol' ] || '$(PREFIX)/bin/dcol' down
	rm -f $(foreach file,bin/dcol $(UNIT) $(COMPLETIONS),'$(DESTDIR)$(PREFIX)/$(file)')
	$(call systemd,systemctl daemon-reload)
	@echo 'kept: /etc/dcol, /var/lib/dcol, /var/log/dcol' >&2

clean: ## Remove bin, out and the tools in .cache.
	rm -rf bin out .cache

.PHONY: help build demo test test-awkward test-kernels bench chaos paper lint fuzz nightly-rapid cover arm64 generate check-generate install uninstall clean
