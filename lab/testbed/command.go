package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// Cmd is an exec.Cmd that runs on a host. All fields can be used, including SysProcAttr and the standard files.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// pipeGrace limits how long Wait copies output after the command has exited: its children may hold the pipe
// open.
const pipeGrace = 2 * time.Second

// Command prepares to run a program on the host, in the caller's working directory. Cancelling ctx kills the program.
// Closing the network kills it and all its children.
func (h *Host) Command(ctx context.Context, name string, arg ...string) *Cmd {
	c := exec.CommandContext(ctx, name, arg...)
	c.WaitDelay = pipeGrace
	if dir, err := os.Getwd(); err == nil {
		c.Dir = dir // the default is the root directory, where the host's thread is
	}
	return &Cmd{Cmd: c, host: h}
}

// Start starts the command on the host, like exec.Cmd.Start.
func (c *Cmd) Start() error {
	err := c.host.Do(func() error {
		c.host.mu.Lock()
		defer c.host.mu.Unlock()
		if err := c.Cmd.Start(); err != nil {
			return err
		}
		c.host.running[c.Process] = struct{}{}
		return nil
	})
	if err != nil {
		return fmt.Errorf("on host %s: %w", c.host.Name(), err)
	}
	return nil
}

// Wait waits for the command, like exec.Cmd.Wait. After the network was closed, it may fail although the command ran.
func (c *Cmd) Wait() error {
	err := c.Cmd.Wait()
	if c.Process != nil {
		c.host.mu.Lock()
		delete(c.host.running, c.Process)
		c.host.mu.Unlock()
	}
	return err
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns what it wrote to stdout. If the command fails, the exec.ExitError has what it
// wrote to stderr.
func (c *Cmd) Output() ([]byte, error) {
	var out, diagnostics bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &diagnostics
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		exit.Stderr = diagnostics.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns what it wrote to stdout and stderr.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
