package netstate

import (
	"context"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// settle is the time to wait after a change before the addresses are read. Changes come in bursts, for example when an
// interface comes up.
const settle = 20 * time.Millisecond

// WatchAddresses sends the usable addresses now, and again after each change of an address, route
// or interface, until ctx ends; then it closes the channel. A slow reader gets only the newest
// list. The list may be unchanged if only a route changed, so callers that depend on SourceFor
// should ask again.
func WatchAddresses(ctx context.Context) (<-chan []Address, error) {
	addresses, err := OpenAddresses()
	if err != nil {
		return nil, err
	}
	// The subscription comes before the first reading, so that no change is missed in between.
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

// listen wakes the watcher after each message, and when messages were lost (ENOBUFS).
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
			continue // further changes disturbed the dump, and will wake us again
		}
		select {
		case <-w.out: // replace a value that was not read yet
		default:
		}
		w.out <- set
	}
}
