// Package relaying keeps the relay of this host, which is a process of its own: starts it, tells it what to do, and
// starts it again if it ends. The relay continues when the agent ends; the next agent finds it.
package relaying

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/relay"
)

const (
	// checkEvery is the interval at which the relay's status is read.
	checkEvery = time.Second
	// A relay that does not answer within firstLimit does not count as one any more, so that nothing is led to it. If it then
	// does not answer within lastLimit either, it is killed, because the next relay needs its listeners' addresses.
	firstLimit = 2 * time.Second
	lastLimit  = 4 * time.Second
	// startLimit limits the wait for the first answer of a new relay.
	startLimit = 5 * time.Second
	// A relay that ends at once is started again after retryFirst, doubled each time up to retryMost.
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Config configures a Keeper.
type Config struct {
	Dir      string      // the run directory
	Version  string      // of this program; a relay of another version is replaced
	LogLevel string      // of the relay
	State    relay.State // its first orders
	Log      *slog.Logger
}

// Keeper keeps the relay.
type Keeper struct {
	config Config
	poke   chan struct{}

	mu       sync.Mutex
	wanted   relay.State
	standing Standing
	changes  int           // made to wanted
	settled  int           // of these, those that standing takes into account
	stepped  chan struct{} // closed when standing is next renewed

	// Of the goroutine of Run.
	conn   *relay.Conn // nil: none
	silent bool        // the relay did not answer when it was last asked
	retry  time.Duration
}

// Standing is the state of the relay.
type Standing struct {
	Relay *relay.Status // nil: there is none
	// Use is the part of the relay's orders for this host's programs that the relay has confirmed; nil: none.
	Use *relay.Use
	Err error // why there is no relay, if one is needed
}

// New returns a Keeper. Run must follow.
func New(config Config) *Keeper {
	return &Keeper{config: config, poke: make(chan struct{}, 1), wanted: config.State, stepped: make(chan struct{}), retry: retryFirst}
}

// Change changes what the relay has to do. It does not wait until the relay does it; Settle does.
func (k *Keeper) Change(change func(*relay.State)) {
	k.mu.Lock()
	change(&k.wanted)
	k.changes++
	k.mu.Unlock()
	select {
	case k.poke <- struct{}{}:
	default: // an earlier change has not been sent yet either
	}
}

// Settle waits until the relay has confirmed the changes so far, or has failed to. Standing shows which. A relay that does
// not answer has not failed yet: Settle waits until it answers or is killed.
func (k *Keeper) Settle(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for changes := k.changes; k.settled < changes && ctx.Err() == nil; {
		stepped := k.stepped
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-stepped:
		}
		k.mu.Lock()
	}
}

// Standing returns the state of the relay, as last checked.
func (k *Keeper) Standing() Standing {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.standing
}

// Servers returns the servers of connections to converters, in the same order; the zero AddrPort for one that is not known.
func (k *Keeper) Servers(list []relay.Ends) ([]netip.AddrPort, error) {
	c, err := relay.Dial(k.config.Dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Servers(list)
}

// Run keeps the relay until ctx ends. The relay continues.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.disconnect()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.poke:
		case <-due.C:
		}
		due.Reset(k.step(ctx))
	}
}

// step sends the State to the relay, and returns when to look at it again.
func (k *Keeper) step(ctx context.Context) time.Duration {
	k.mu.Lock()
	wanted, changes, before := k.wanted, k.changes, k.standing.Err
	k.mu.Unlock()
	status, err := k.tell(ctx, wanted)
	now := Standing{Relay: status, Err: err}
	if status != nil && err == nil {
		now.Use = wanted.Use
	}
	k.mu.Lock()
	k.standing = now
	if !errors.Is(err, errSilent) && !errors.Is(err, os.ErrDeadlineExceeded) {
		k.settled = changes
	}
	close(k.stepped)
	k.stepped = make(chan struct{})
	k.mu.Unlock()
	if err != nil {
		k.disconnect()
		if before == nil || before.Error() != err.Error() {
			k.config.Log.Error("connections are not converted", "err", err)
		}
		wait := k.retry
		k.retry = min(2*k.retry, retryMost)
		return wait
	}
	k.retry = retryFirst
	return checkEvery
}

// tell gives a relay the State, and starts it if there is none of this version. It returns nil if none is needed.
func (k *Keeper) tell(ctx context.Context, wanted relay.State) (*relay.Status, error) {
	var err error
	if k.conn == nil {
		if k.conn, err = relay.Dial(k.config.Dir); err != nil && !errors.Is(err, relay.ErrNone) {
			return nil, err
		}
	}
	var status relay.Status
	if k.conn != nil {
		if status, err = k.ask(); err != nil {
			return nil, err
		}
	}
	if wanted.Empty() {
		if k.conn == nil {
			return nil, nil
		}
		defer k.disconnect()
		return nil, k.conn.End()
	}
	if k.conn == nil || status.Version != k.config.Version {
		k.disconnect()
		if k.conn, err = k.start(ctx); err != nil {
			return nil, err
		}
	}
	status, err = k.conn.Set(wanted)
	return &status, err
}

// errSilent means that the relay is killed soon, unless it answers until then.
var errSilent = errors.New("does not answer")

// ask returns the relay's Status. If the relay has ended, or has been killed because it does not answer, there is no
// connection afterwards.
func (k *Keeper) ask() (relay.Status, error) {
	limit := firstLimit
	if k.silent {
		limit = lastLimit
	}
	status, err := k.conn.StatusWithin(limit)
	switch silent := errors.Is(err, os.ErrDeadlineExceeded); {
	case err == nil:
		k.silent = false
		return status, nil
	case silent && !k.silent:
		k.silent = true
		return status, fmt.Errorf("the relay, process %d, %w", k.conn.Listener().Pid, errSilent)
	case silent:
		k.config.Log.Warn("the relay does not answer and is killed: its connections are reset", "pid", k.conn.Listener().Pid)
		if err := k.conn.Kill(); err != nil {
			return status, err
		}
	}
	k.silent = false
	k.disconnect()
	return status, nil
}

// start starts a relay, which takes over from a running one. If the new relay does not answer in time, it
// is killed. Otherwise it might come up later without orders, and take the place of another relay, or stay
// although none is wanted any more.
func (k *Keeper) start(ctx context.Context) (_ *relay.Conn, err error) {
	cmd := exec.Command("/proc/self/exe", "relay", "--dir", k.config.Dir, "--log-level", k.config.LogLevel)
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives us
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the relay: %w", err)
	}
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- cmd.Wait()
	}()
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill() // an error means that it has ended
			<-done
		}
	}()
	limit := time.After(startLimit)
	for {
		if c, err := relay.Dial(k.config.Dir); err == nil {
			if s, err := c.Status(); err == nil && s.PID == cmd.Process.Pid {
				return c, nil
			}
			c.Close()
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("the relay ended at its start: %w", err)
		case <-limit:
			return nil, fmt.Errorf("the relay, process %d, does not answer after %v", cmd.Process.Pid, startLimit)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (k *Keeper) disconnect() {
	if k.conn != nil {
		k.conn.Close()
		k.conn = nil
	}
}

// SetMode changes for which servers the relay of a run directory uses converters, for a user who finds no agent. It reports
// whether there is a relay.
func SetMode(dir string, mode choice.Mode) (there bool, err error) {
	c, err := relay.Dial(dir)
	if errors.Is(err, relay.ErrNone) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer c.Close()
	return true, c.SetMode(mode)
}

// End ends the relay of a run directory, if there is one, even if it does not answer. Its connections are reset. End also
// removes what the relay has written for the next one.
func End(dir string) error { return errors.Join(end(dir), relay.Forget(dir)) }

func end(dir string) error {
	c, err := relay.Dial(dir)
	if errors.Is(err, relay.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.EndAndWait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return c.Kill()
}

// EndHung ends the relay of a run directory if it is of another user than the agent's and does not answer. The agent itself may
// not: an agent of root may have left the relay.
func EndHung(dir string, agent int) error {
	c, err := relay.Dial(dir)
	if errors.Is(err, relay.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if int(c.Listener().Uid) == agent {
		return nil
	}
	if _, err := c.StatusWithin(lastLimit); !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // it answers, or has ended
	}
	return c.Kill()
}
