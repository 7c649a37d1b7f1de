package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/emulink"
)

// hostStage is the argv[0] under which our executable runs as a host's init.
const hostStage = "dcol-lab-host"

// Stage returns at once in an ordinary process. In a process that is part of a network, it does that part's work and
// never returns.
func Stage() {
	emulink.Stage()
	if len(os.Args) == 0 || os.Args[0] != hostStage {
		return
	}
	if err := hostInit(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// initConfig configures a host's init, as one JSON value on stdin.
type initConfig struct {
	Hostname string `json:"hostname"`
	EtcHosts string `json:"etc_hosts"`
}

// initReady is the output of init when the host is ready. Any other output explains why it failed.
const initReady = "ready\n"

// hostInit is process 1 of a host. It sets up the host's files and reaps orphans until its stdin ends. When it exits,
// the kernel ends all processes of the host.
func hostInit(stdin io.Reader, stdout io.Writer) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)

	var config initConfig
	if err := json.NewDecoder(stdin).Decode(&config); err != nil {
		return fmt.Errorf("read the host's configuration: %w", err)
	}
	if err := setUpFiles(config); err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, initReady); err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stdin) // errors end it like EOF
	}()
	for {
		select {
		case <-children:
			reap()
		case <-ended:
			return nil
		}
	}
}

// reap waits for every child that has exited. One signal may stand for several.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
