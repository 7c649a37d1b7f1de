package mptcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// eventBuffer is the size in bytes of the kernel's event queue. It has room for about ten thousand events, a few
// seconds of a busy host.
const eventBuffer = 8 << 20

// eventDatagram is larger than any event. The kernel sends each in a separate datagram of about 150 bytes.
const eventDatagram = 16 << 10

// Namespace implements Kernel for one network namespace, through netlink.
type Namespace struct {
	log      *slog.Logger
	family   uint16 // generic netlink id of mptcp_pm
	commands *genetlink.Conn
	events   *genetlink.Conn
	sysctls  sysctls

	ignoresJoinFlags bool // JoinFlags is a limit of this kernel

	diagMu sync.Mutex
	diag   *diagSocket

	countersMu sync.Mutex
	counters   counters
}

var _ Kernel = (*Namespace)(nil)

// Open subscribes to the path-manager events of the calling thread's network namespace and prepares for commands.
// It changes nothing. If the kernel lacks what it needs, the error is an *UnsupportedError.
func Open(log *slog.Logger) (_ *Namespace, err error) {
	n := &Namespace{log: log}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.sysctls, err = openSysctls(); err != nil {
		return nil, err
	}
	if n.commands, err = genetlink.Dial(&netlink.Config{Strict: true}); err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	family, err := n.commands.GetFamily(familyName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unsupported(MPTCP)
	}
	if err != nil {
		return nil, fmt.Errorf("look up generic netlink family %s: %w", familyName, err)
	}
	n.family = family.ID
	if n.events, err = subscribe(family); err != nil {
		return nil, err
	}
	if n.diag, err = openDiag(); err != nil {
		return nil, err
	}
	n.counters = openCounters()
	limits, err := Limits()
	if err != nil {
		return nil, err
	}
	n.ignoresJoinFlags = slices.Contains(limits, JoinFlags)
	return n, nil
}

func subscribe(family genetlink.Family) (*genetlink.Conn, error) {
	group := uint32(0)
	for _, g := range family.Groups {
		if g.Name == eventGroupName {
			group = g.ID
		}
	}
	if group == 0 {
		return nil, unsupported(Events)
	}
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink for events: %w", err)
	}
	if err := c.SetReadBuffer(eventBuffer); err != nil {
		c.Close()
		return nil, fmt.Errorf("enlarge the event queue: %w", err)
	}
	if err := c.JoinGroup(group); err != nil {
		c.Close()
		if errors.Is(err, syscall.EPERM) {
			return nil, fmt.Errorf("subscribe to MPTCP events: %w; run as root or with CAP_NET_ADMIN", err)
		}
		return nil, fmt.Errorf("subscribe to MPTCP events: %w", err)
	}
	return c, nil
}

// Close ends all access. A running Listen returns an error.
func (n *Namespace) Close() error {
	var errs []error
	if n.commands != nil {
		errs = append(errs, n.commands.Close())
	}
	if n.events != nil {
		errs = append(errs, n.events.Close())
	}
	if n.diag != nil {
		errs = append(errs, n.diag.close())
	}
	return errors.Join(append(errs, n.counters.close(), n.sysctls.close())...)
}

// Listen implements Kernel.
func (n *Namespace) Listen(ctx context.Context, events chan<- Event) error {
	socket, err := newReceiver(n.events, eventDatagram)
	if err != nil {
		return fmt.Errorf("read MPTCP events: %w", err)
	}
	// A deadline in the past wakes the read when ctx ends.
	stop := context.AfterFunc(ctx, func() { n.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	send := func(ev Event) {
		select {
		case events <- ev:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		datagram, err := socket.next()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			n.log.Warn("MPTCP events were lost", "cause", "the kernel's queue ran full")
			// After an overrun the socket drops all events until its queue is empty, without further errors
			// (NETLINK_S_CONGESTED). Only a list made after that is complete.
			socket.drained = func() { send(Event{Kind: EventsLost}) }
			continue
		case err != nil:
			return fmt.Errorf("read MPTCP events: %w", err)
		}
		if err := decodeEvents(datagram, n.family, send); err != nil {
			n.log.Error("MPTCP event cannot be read", "error", err)
			send(Event{Kind: EventsLost})
		}
	}
	return nil
}
