package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/agent/routing"
	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// stopLimit is the time that an agent may take to stop; systemd's limit for the packaged unit is the same.
const stopLimit = 15 * time.Second

// Down stops the agent, if one runs, and removes every trace of it.
func Down(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("this command changes the host's network: run it as root")
	}
	only, err := takeNamespace(ctx, lockDir, log)
	if err != nil {
		return err
	}
	defer only.Close()
	return errors.Join(
		gateway.CleanUp(), relaying.End(c.RunDir),
		removeRunFiles(c), routing.CleanUp(c.StateDir),
		serving.CleanUp(c), tunnel.CleanUp(), client.Restore(c.StateDir, log), client.Forget(c.StateDir),
		client.CleanUp(),
		errors.Join(damagedRecords(c)...),
	)
}

// takeNamespace locks the network namespace after it has stopped the agent that has it.
func takeNamespace(ctx context.Context, dir string, log *slog.Logger) (*namespaceLock, error) {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	stopping := 0
	for {
		only, err := lockNamespace(dir)
		locked, held := errors.AsType[*lockedError](err)
		if !held {
			return only, err
		}
		if locked.pid != stopping && locked.pid != 0 {
			log.Info("stopping the agent", "pid", locked.pid)
			if err := terminate(locked.pid, dir); err != nil {
				return nil, fmt.Errorf("stop the agent: %w", err)
			}
			stopping = locked.pid
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent did not stop within %v; kill -9 %d ends it: %w", stopLimit, locked.pid, ctx.Err())
		}
	}
}

// terminate asks the process to stop if it has one of dir's locks open. A lock's file may name a process of
// another PID namespace, and another process may have that number here.
func terminate(pid int, dir string) error {
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has just ended
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(process)
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	holds := func(fd string) bool {
		to, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(to, dir+"/agent-")
	}
	if !slices.ContainsFunc(open, holds) {
		return fmt.Errorf("process %d is not the agent: stop the agent in the container or namespace in which it was started", pid)
	}
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}

// removeRunFiles removes the sockets, and the files by which an agent hands over to the next.
func removeRunFiles(c *config.Config) error {
	openvpn.CleanUpDir(filepath.Join(c.RunDir, openvpn.Dir))
	return errors.Join(client.ForgetTunnelKeys(c.RunDir), api.RemoveSocket(c.Socket()))
}
