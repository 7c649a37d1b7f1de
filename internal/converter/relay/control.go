package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
)

const controlName = "relay-control.sock"

// answerTimeout bounds the time that either side waits for the other.
const answerTimeout = 5 * time.Second

// request is one line of JSON from the agent, or from another relay. At most one field is set; without any it asks for
// the Status.
type request struct {
	State    *State `json:"state,omitempty"`
	TakeOver bool   `json:"take_over,omitempty"` // hand over the listeners, and end with the last connection
	End      bool   `json:"end,omitempty"`       // end at once
	// Mode changes the mode of the last State's Use. It is for users who find no agent.
	Mode *choice.Mode `json:"mode,omitempty"`
	// Led asks for the servers of connections to converters.
	Led []Ends `json:"led,omitempty"`
}

// answer is one line of JSON.
type answer struct {
	Status Status `json:"status"`
	// Listeners are the names of the sockets that come with the answer to TakeOver, in the same order.
	Listeners []string `json:"listeners,omitempty"`
	// Changed reports that the relay follows request.Mode. Relays of older versions do not know it.
	Changed bool `json:"changed,omitempty"`
	// Servers answer request.Led, in the same order. An empty one is not known.
	Servers []netip.AddrPort `json:"servers,omitempty"`
}

// Conn is an agent's connection to a relay. It is for one goroutine.
type Conn struct {
	conn *net.UnixConn
	in   *json.Decoder
}

// ErrNone means that there is no relay.
var ErrNone = errors.New("no relay runs on this host")

// Dial connects to the relay that uses a run directory. The error is ErrNone if no relay runs.
func Dial(dir string) (*Conn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, controlName), Net: "unix"})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the relay: %w", err)
	}
	return &Conn{conn: c, in: json.NewDecoder(c)}, nil
}

// Close ends the connection. The relay continues.
func (c *Conn) Close() error { return c.conn.Close() }

// Set sends the relay a new State, and returns its Status.
func (c *Conn) Set(s State) (Status, error) { return c.ask(request{State: &s}) }

// Status returns the relay's Status.
func (c *Conn) Status() (Status, error) { return c.StatusWithin(answerTimeout) }

// StatusWithin is like Status. If the relay does not answer within limit, the error is os.ErrDeadlineExceeded.
func (c *Conn) StatusWithin(limit time.Duration) (Status, error) {
	a, err := c.exchange(request{}, limit)
	return a.Status, err
}

// SetMode changes for which servers converters are used, until the next State.
func (c *Conn) SetMode(mode choice.Mode) error {
	a, err := c.exchange(request{Mode: &mode}, answerTimeout)
	if err == nil && !a.Changed {
		err = errors.New("the relay that runs does not follow: its dcol is older, or it hands over to another relay")
	}
	return err
}

// Servers returns the servers of connections to converters, in the same order. One that the relay does not know is the zero
// AddrPort.
func (c *Conn) Servers(list []Ends) ([]netip.AddrPort, error) {
	a, err := c.exchange(request{Led: list}, answerTimeout)
	if err != nil {
		return nil, err
	}
	// Relays of older versions answer nothing.
	return append(a.Servers, make([]netip.AddrPort, max(0, len(list)-len(a.Servers)))...)[:len(list)], nil
}

// End ends the relay. Its connections are reset.
func (c *Conn) End() error {
	_, err := c.ask(request{End: true})
	return err
}

func (c *Conn) ask(r request) (Status, error) {
	a, err := c.exchange(r, answerTimeout)
	return a.Status, err
}

func (c *Conn) exchange(r request, limit time.Duration) (a answer, err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	if err := c.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return answer{}, err
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("ask the relay: %w", err)
	}
	if err := c.in.Decode(&a); err != nil {
		return answer{}, fmt.Errorf("ask the relay: %w", err)
	}
	return a, nil
}

// listenControl replaces the control socket of a relay that has ended or is ending. Only root may use it.
func listenControl(dir string) (*net.UnixListener, error) {
	path := filepath.Join(dir, controlName)
	// The socket is bound under another name first, so that at each moment one that answers has the path.
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the agent: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the agent: %w", err), l.Close(), os.Remove(fresh))
	}
	return l, nil
}

// control answers at the control socket until ctx ends.
func (r *relay) control(ctx context.Context, l *net.UnixListener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("listen for the agent: %w", err)
		}
		r.group.Go(func() error {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			r.converse(c)
			return nil
		})
	}
}

// converse answers one agent, or another relay, until it leaves.
func (r *relay) converse(c *net.UnixConn) {
	defer c.Close()
	r.visited(1)
	defer r.visited(-1)
	in := json.NewDecoder(c)
	for {
		var q request
		if err := in.Decode(&q); err != nil {
			return
		}
		a := answer{}
		var fds []int
		switch {
		case q.State != nil:
			r.apply(*q.State)
		case q.TakeOver:
			a.Listeners, fds = r.handOver()
		case q.Mode != nil:
			a.Changed = r.setMode(*q.Mode)
		case q.Led != nil:
			a.Servers = r.led.find(q.Led)
		}
		a.Status = r.status()
		err := reply(c, a, fds)
		if q.TakeOver || q.End {
			r.end(q.End)
		}
		if err != nil {
			r.log.Warn("cannot answer", "err", err)
			return
		}
	}
}

func reply(c *net.UnixConn, a answer, fds []int) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	if err := c.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), rights, nil)
	return err
}
