package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/connect"
	"github.com/detour-collective/dcol/internal/kernel/bpf/keepalive"
	"github.com/detour-collective/dcol/internal/kernel/bpf/mptcpify"
	"github.com/detour-collective/dcol/internal/kernel/bpf/unsent"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// takeOver makes the kernel give new sockets to this agent. The agent must already be listening, because
// the kernel refuses joins if no path manager listens.
func (h *host) takeOver(kernel *mptcp.Namespace, settings *config.Config) error {
	key, value, err := kernel.UserspacePMSysctl()
	if err != nil {
		return err
	}
	record, err := netstate.OpenRecord(SysctlRecord(settings.StateDir))
	if err != nil {
		return err
	}
	h.undo = append(h.undo, func() error { return Restore(settings.StateDir, h.log) })
	if _, err = record.Set(key, value); err != nil {
		return err
	}
	if err := shortenBlackholes(kernel, record); err != nil {
		h.log.Warn("after an outage, new connections may be plain TCP for an hour", "err", err)
	}
	if timeout := settings.Client.InactivityTimeout.Std(); timeout > 0 {
		key, value, err := kernel.InactivitySysctl(timeout)
		if err == nil {
			_, err = record.Set(key, value)
		}
		if err != nil {
			h.log.Warn("the inactivity timeout of connections stays as it is", "err", err)
		}
	}
	if h.inactivity, err = kernel.Inactivity(); err != nil {
		return err
	}
	return h.makeSocketsMPTCP(settings.Client.Mptcpify)
}

// shortenBlackholes shortens the time for which new connections are plain TCP after an outage, from Linux's hour to a
// minute. It keeps a value that somebody has set.
func shortenBlackholes(kernel *mptcp.Namespace, record *netstate.Record) error {
	key, value, ok, err := kernel.BlackholeSysctl()
	if err != nil || !ok {
		return err
	}
	_, err = record.Set(key, value)
	return err
}

// openEnds opens the source of the final counts of subflows that end, and returns the function that delivers them. Without
// it, what a subflow carries after its last sample is not counted.
func (h *host) openEnds() func(context.Context) error {
	source, err := mptcp.OpenEnds()
	if err != nil {
		h.log.Warn("what subflows carry in their last second is not counted", "err", err)
		return func(context.Context) error { return nil }
	}
	h.undo = append(h.undo, source.Close)
	ends := make(chan mptcp.End, eventRoom)
	h.ends = ends
	return func(ctx context.Context) error {
		return source.Listen(ctx, func(e mptcp.End) {
			select {
			case ends <- e:
			case <-ctx.Done():
			}
		}, func() { h.log.Debug("what some subflows carried in their last second is not counted") })
	}
}

// makeSocketsMPTCP makes the kernel create MPTCP sockets for programs, as the operator chose. If this
// kernel cannot do that, the status shows the problem. It is no error, because `dcol run` works all the
// same.
func (h *host) makeSocketsMPTCP(choice string) error {
	if choice == config.MptcpifyNone {
		return nil
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &ns); err != nil {
		return fmt.Errorf("identify the network namespace: %w", err)
	}
	scope := mptcpify.Scope{NetworkNamespace: uint32(ns.Ino)}
	if choice != config.MptcpifyHost {
		scope.Cgroup = choice
	}
	hook, err := mptcpify.Attach(scope)
	if err != nil {
		problem := fmt.Sprintf("sockets do not become MPTCP ([client] mptcpify = %q): %v", choice, err)
		h.problems = append(h.problems, problem)
		h.log.Warn("sockets do not become MPTCP", "problem", problem)
		return nil
	}
	h.undo = append(h.undo, hook.Close)
	return nil
}

// openProber opens the sender of keep-alive probes. Without it, a silent detour is left later, and
// only by bulk transfers and streams.
func (h *host) openProber(cgroup string) prober {
	p, err := keepalive.Open(cgroup)
	if err != nil {
		h.log.Warn("silent detours are detected late", "err", err)
		return nil
	}
	h.undo = append(h.undo, p.Close)
	return p
}

// boundUnsent limits the unsent data of each subflow, so that uploads do not wait for data that is queued on a
// detour that has become slow. Everything else works without it.
func (h *host) boundUnsent(cgroup string) {
	limit, err := unsent.Open(cgroup)
	if err != nil {
		h.log.Warn("a detour that loses packets may hold up uploads", "err", err)
		return
	}
	h.undo = append(h.undo, limit.Close)
}

// identify returns the id by which eBPF programs recognise this process, to leave its own connections alone. It returns 0
// if nothing is captured, or if the id cannot be found out.
func (h *host) identify(capture string) uint32 {
	if capture == config.CaptureNone {
		return 0
	}
	id, err := connect.ProcessID()
	if err != nil {
		problem := fmt.Sprintf("programs' connections are not converted ([client.converter] capture = %q): %v", capture, err)
		h.problems = append(h.problems, problem)
		h.log.Warn("programs' connections are not converted", "problem", problem)
	}
	return id
}

// SysctlRecord is the file that remembers, across a crash, the sysctls from before the client role.
func SysctlRecord(stateDir string) string { return filepath.Join(stateDir, "client-sysctls.json") }

// Restore restores the sysctls from before the client role: the path manager of new sockets, and the time for which the
// kernel uses plain TCP after an outage.
func Restore(stateDir string, log *slog.Logger) error {
	record, err := netstate.OpenRecord(SysctlRecord(stateDir))
	if err != nil {
		return err
	}
	log.Debug("sysctls are restored", "record", SysctlRecord(stateDir))
	return record.Restore()
}

// checkPathManager logs when somebody else begins or ceases to manage the paths of new connections.
func (h *host) checkPathManager() {
	switch err := h.pathManager(); {
	case err != nil && !h.displaced:
		h.displaced = true
		h.log.Warn("the agent does not manage the paths of new connections", "problem", pathManagerProblem(err))
	case err == nil && h.displaced:
		h.displaced = false
		h.log.Info("the agent manages the paths of new connections again")
	}
}

// pathManagerProblem describes to the user why this agent gets no new connections. The error, of
// mptcp.Namespace.CheckUserspacePM, must not be nil.
func pathManagerProblem(err error) string {
	if errors.Is(err, mptcp.ErrSwitchedOff) {
		return "MPTCP was switched off while the agent runs, so new connections are plain TCP and get no detours: sysctl -w net.mptcp.enabled=1"
	}
	if d, ok := errors.AsType[*mptcp.DisplacedError](err); ok {
		return fmt.Sprintf("another path manager has taken over while the agent runs (%v), so new connections get no detours: "+
			"find the program that set it (mptcpd, NetworkManager, a file in sysctl.d), then: sysctl -w %s=%s", d, d.Sysctl, d.Want)
	}
	return fmt.Sprintf("cannot check whether the agent manages new connections: %v", err)
}
