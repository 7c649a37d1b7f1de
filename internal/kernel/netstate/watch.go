package netstate

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// settle is how long a burst of changes (an interface coming up) is let pass before the set is read.
const settle = 20 * time.Millisecond

// WatchAddresses tells the set of usable addresses now, and again whenever an address, a route or
// an interface changed, until ctx ends; then the channel closes. A reader that is late gets the
// newest set only. The set may be equal to the one before: a route may have changed, so a caller
// that depends on SourceFor asks again.
func WatchAddresses(ctx context.Context) (<-chan []Address, error) {
	addresses, err := OpenAddresses()
	if err != nil {
		return nil, err
	}
	// Subscribed before the first reading, so that no change falls between the two.
	changes, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: unix.RTMGRP_LINK |
		unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE})
	if err != nil {
		addresses.Close()
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	first, err := addresses.Usable()
	if err != nil {
		_ = changes.Close()
		addresses.Close()
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	w := watch{addresses: addresses, changes: changes, wake: make(chan struct{}, 1), out: make(chan []Address, 1)}
	w.out <- first
	go w.listen()
	go w.run(ctx)
	return w.out, nil
}

type watch struct {
	addresses *Addresses
	changes   *netlink.Conn
	wake      chan struct{} // closed by listen when changes is
	out       chan []Address
}

// listen turns changes into wakes, whatever they say; so lost ones (ENOBUFS) are as good as any.
func (w *watch) listen() {
	defer close(w.wake)
	for {
		if _, err := w.changes.Receive(); err != nil && !isLost(err) {
			return
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *watch) run(ctx context.Context) {
	defer w.addresses.Close()
	defer close(w.out)
	stop := context.AfterFunc(ctx, func() { _ = w.changes.Close() })
	defer stop()
	for range w.wake {
		select {
		case <-ctx.Done():
		case <-time.After(settle):
		}
		set, err := w.addresses.Usable()
		if err != nil {
			continue // a dump disturbed by further changes, which wake us again
		}
		select {
		case <-w.out: // replace what nobody has read
		default:
		}
		w.out <- set
	}
}
