package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

const (
	// A role whose port is taken is started again after retryFirst, doubled each time up to retryMost.
	retryFirst = 250 * time.Millisecond
	retryMost  = 4 * time.Second
)

// role starts and runs one of the agent's roles. If another program has the role's port, the start is
// repeated, and the other roles run.
type role struct {
	name  config.Role
	log   *slog.Logger
	start func(context.Context) (run func(context.Context) error, err error)
	isUp  func() bool
	end   func()                    // frees resources that the role keeps between its starts; nil: there are none
	taken atomic.Pointer[portTaken] // found by the last attempt that failed; nil: none has
}

// begin starts the role and runs it in group. If the port is taken, it tries again in the background. It
// returns any other error.
func (r *role) begin(ctx context.Context, group *errgroup.Group) error {
	run, err := r.start(ctx)
	if err != nil && asPortTaken(err) == nil {
		return err
	}
	group.Go(func() error { return r.keep(ctx, run, err) })
	return nil
}

// keep runs the role until ctx ends, and starts it again while its port is taken.
func (r *role) keep(ctx context.Context, run func(context.Context) error, err error) error {
	if r.end != nil {
		defer r.end()
	}
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		if err == nil {
			err = run(ctx)
		}
		taken := asPortTaken(err)
		if taken == nil {
			return err
		}
		if r.taken.Swap(taken) == nil {
			r.log.Error("a role waits for its port, and starts when the port is free", "role", r.name, "problem", taken.describe(r.name).Problem())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		run, err = r.start(ctx)
	}
}

// waiting returns the port for which the role waits; nil: none.
func (r *role) waiting() *api.TakenPort {
	taken := r.taken.Load()
	if taken == nil || r.isUp() {
		return nil
	}
	described := taken.describe(r.name)
	return &described
}

// portTaken is a port that another program has.
type portTaken struct {
	network string // udp or tcp
	port    int
}

// asPortTaken returns the port that err reports as in use; nil if err reports something else.
func asPortTaken(err error) *portTaken {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRINUSE) {
		return nil
	}
	switch at := op.Addr.(type) {
	case *net.UDPAddr:
		return &portTaken{"udp", at.Port}
	case *net.TCPAddr:
		return &portTaken{"tcp", at.Port}
	}
	return nil
}

// describe names the program that has the port now.
func (t *portTaken) describe(role config.Role) api.TakenPort {
	out := api.TakenPort{Role: string(role), Network: t.network, Port: t.port}
	if holders, err := netstate.PortHolders(t.network, t.port); err == nil && len(holders) > 0 {
		out.Holder = &api.PortHolder{User: holders[0].User, Program: holders[0].Program, PID: holders[0].PID}
	}
	return out
}
