package agent

import (
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/keepalive"
	bpf "github.com/detour-collective/dcol/internal/kernel/bpf/mptcpify"
	"github.com/detour-collective/dcol/internal/kernel/bpf/unsent"
)

// mptcpify has the kernel make programs' sockets MPTCP, as the operator wants.
// Where this kernel cannot, the problem is for the status to show: programs
// started with `dcol run` are served all the same.
func mptcpify(choice string) (hook io.Closer, problem string, err error) {
	if choice == config.MptcpifyNone {
		return nopCloser{}, "", nil
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		return nil, "", fmt.Errorf("identify the network namespace: %w", err)
	}
	scope := bpf.Scope{NetworkNamespace: uint32(ns.Ino)}
	if choice != config.MptcpifyHost {
		scope.Cgroup = choice
	}
	h, err := bpf.Attach(scope)
	if err != nil {
		return nopCloser{}, fmt.Sprintf("sockets are not made MPTCP ([client] mptcpify = %q): %v", choice, err), nil
	}
	return h, "", nil
}

// boundUnsent keeps uploads from waiting for what the kernel has put in line on a detour that has become
// slow. Where it cannot be had, all works without it.
func boundUnsent(cgroup string, log *slog.Logger) io.Closer {
	limit, err := unsent.Open(cgroup)
	if err != nil {
		log.Warn("a detour that loses packets may hold up uploads", "err", err)
		return nopCloser{}
	}
	return limit
}

// openProber makes it possible to ask whether a detour is alive. Where it cannot be had, a
// detour through which nothing comes is left later, and only from bulk transfers and streams.
func openProber(cgroup string, log *slog.Logger) *keepalive.Prober {
	prober, err := keepalive.Open(cgroup)
	if err != nil {
		log.Warn("a detour that carries nothing is found out late", "err", err)
		return nil
	}
	return prober
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }
