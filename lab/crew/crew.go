// Package crew runs programs on the hosts of a network and watches them: any program, with its output in a
// file, and dcol's agents as members of a collective. Experiments, benchmarks and chaos import it.
package crew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Crew starts programs on the hosts of a network. They end with the network.
type Crew struct {
	*testbed.Network
	Programs programs.Pair
	// Logs is the folder for the output of programs.
	Logs string
}

// Run runs a short command on a host and returns what it writes to stdout. The error has what it writes to
// stderr.
func (c Crew) Run(ctx context.Context, host string, argv ...string) ([]byte, error) {
	cmd := c.Host(host).Command(ctx, argv[0], argv[1:]...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w: %s", strings.Join(argv, " "), host, err, strings.TrimSpace(said.String()))
	}
	return out, nil
}

// DCol runs a short dcol command on a host.
func (c Crew) DCol(ctx context.Context, host string, args ...string) ([]byte, error) {
	return c.Run(ctx, host, append([]string{c.Programs.DCol}, args...)...)
}

// Status returns the status of a host's agent.
func (c Crew) Status(ctx context.Context, host string) (s api.Status, err error) {
	out, err := c.DCol(ctx, host, "status", "--json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("read the status of %s: %w", host, err)
	}
	return s, nil
}

// Part returns the command line of one of the lab's own programs, with its configuration.
func (c Crew) Part(name string, configuration any) []string {
	data, err := json.Marshal(configuration)
	if err != nil {
		panic(err) // configurations are structs of plain values
	}
	return []string{c.Programs.Lab, "part", name, string(data)}
}

// errHopeless in an error's chain ends an Await.
var errHopeless = errors.New("")

// Hopeless marks an error that does not go away by waiting.
func Hopeless(err error) error { return fmt.Errorf("%w%w", err, errHopeless) }

// Await polls a condition every interval until it returns nil or a Hopeless error. When the time runs out, it
// returns the condition's last error.
func Await(ctx context.Context, limit, interval time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		switch {
		case err == nil || errors.Is(err, errHopeless):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(deadline):
			return fmt.Errorf("%w, after %v", err, limit)
		}
		if err := Pause(ctx, interval); err != nil {
			return err
		}
	}
}

// Pause waits for d. If ctx ends first, it returns the reason.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
