package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/packaging"
)

const (
	unitName  = "dcol.service"
	ownUnit   = "/etc/systemd/system/" + unitName
	answersIn = 20 * time.Second
)

// Running describes how the agent runs.
type Running struct {
	Before  bool   // it was running before
	Systemd bool   // systemd starts it at each boot
	Log     string // log file, if started without systemd
}

// Start starts the agent and waits until it answers. With systemd it is also started at each boot.
func (h Host) Start(ctx context.Context, socket string) (*Running, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answersIn, fmt.Errorf("no answer within %v", answersIn))
	defer cancel()
	if answers(ctx, socket) {
		return &Running{Before: true}, nil
	}
	// The unit uses the configuration at its default path.
	if packaging.SystemdRuns() && h.Config == config.DefaultPath {
		return h.startUnit(ctx, socket)
	}
	return h.startAlone(ctx, socket)
}

func answers(ctx context.Context, socket string) bool {
	_, err := api.Dial(socket).Status(ctx)
	return err == nil
}

// startUnit starts the agent with systemd. It installs our unit if there is none.
func (h Host) startUnit(ctx context.Context, socket string) (*Running, error) {
	if exec.CommandContext(ctx, "systemctl", "cat", unitName).Run() != nil {
		folder, err := programFolder()
		if err != nil {
			return nil, err
		}
		if err := durable.Replace(ownUnit, []byte(packaging.Unit(folder)), 0o644); err != nil {
			return nil, fmt.Errorf("write the agent's systemd unit: %w", err)
		}
		if err := systemctl(ctx, "daemon-reload"); err != nil {
			return nil, err
		}
	}
	if err := ensureUser(ctx); err != nil {
		return nil, err
	}
	if err := systemctl(ctx, "enable", "--now", unitName); err != nil {
		return nil, fmt.Errorf("%w\nsee `journalctl -u dcol`", err)
	}
	if err := wait(ctx, socket, nil); err != nil {
		return nil, fmt.Errorf("start the agent: %w\nsee `journalctl -u dcol`", err)
	}
	return &Running{Systemd: true}, nil
}

// ensureUser makes the agent's user if it does not exist. A package makes it, too, if systemd is there at that time.
func ensureUser(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "systemd-sysusers", "-")
	cmd.Stdin = strings.NewReader(packaging.User)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the agent's user: systemd-sysusers: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// programFolder returns this program's folder if the unit, which hides home directories, can start
// it from there.
func programFolder() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	for _, hidden := range []string{"/home/", "/root/", "/tmp/", "/var/tmp/", "/run/user/"} {
		if strings.HasPrefix(program, hidden) {
			return "", fmt.Errorf("systemd cannot run the agent from %s: install dcol (sudo make install), then run this command again", program)
		}
	}
	return filepath.Dir(program), nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// startAlone starts an agent that continues after this command and its terminal.
func (h Host) startAlone(ctx context.Context, socket string) (*Running, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this program: %w", err)
	}
	path := filepath.Join(h.State, "agent.log")
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's log: %w", err)
	}
	defer log.Close()
	if err := durable.Adopt(log, path); err != nil {
		return nil, fmt.Errorf("open the agent's log: %w", err)
	}
	began, err := log.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("open the agent's log: %w", err)
	}
	cmd := exec.Command(program, "agent", "--config", h.Config, "--log", path)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := wait(ctx, socket, ended); err != nil {
		return nil, fmt.Errorf("start the agent: %w%s\nits log is %s", err, lastWords(path, began), path)
	}
	return &Running{Log: path}, nil
}

// wait waits until the agent answers or has ended.
func wait(ctx context.Context, socket string, ended <-chan error) error {
	for !answers(ctx, socket) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-ended:
			return fmt.Errorf("it ended: %w", errors.Join(err))
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// lastWords returns the last message of an agent that ended, on a line of its own.
func lastWords(path string, from int64) string {
	data, err := os.ReadFile(path)
	if int64(len(data)) < from {
		from = 0 // the agent has started another file
	}
	if err != nil || int64(len(data)) == from {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data[from:])), "\n")
	return "\n" + strings.TrimPrefix(lines[len(lines)-1], "error: ")
}
