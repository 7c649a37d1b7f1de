package nft

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Removals reports that other programs have removed a table, or some of its chains, rules, sets or elements.
type Removals struct {
	c     chan struct{}
	nl    *netlink.Conn
	table Table
	own   uint32 // port number of the connection whose removals are not reported
	pace  pace
	ended chan struct{}

	elements atomic.Bool // some were removed, or may have been
}

// WatchRemovals reports what other connections than c remove from a table, in the calling thread's network namespace,
// until Close.
func (c *Conn) WatchRemovals(t Table) (*Removals, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	if err := nl.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", withFix(err)), nl.Close())
	}
	r := &Removals{c: make(chan struct{}, 1), nl: nl, table: t, own: c.nl.PID(), ended: make(chan struct{})}
	go r.run()
	return r, nil
}

// C returns a channel that delivers a value after removals. The first removal is reported at once. While further
// removals follow, the reports become rarer, and each stands for all removals since the last report. So a program that
// removes a table again and again does not keep its owner busy.
func (r *Removals) C() <-chan struct{} { return r.c }

// Intact reports whether Conn.Intact is true for the table and, if others may have removed elements, Conn.Whole too. c
// is the connection that writes the table.
func (r *Removals) Intact(c *Conn) (bool, error) {
	intact, err := c.Intact(r.table)
	if err != nil || !intact || !r.elements.Swap(false) {
		return intact, err
	}
	whole, err := c.Whole(r.table)
	if err != nil {
		r.elements.Store(true) // the next call looks again
	}
	return whole, err
}

// Close ends the reports.
func (r *Removals) Close() error {
	err := r.nl.Close()
	<-r.ended
	return err
}

func (r *Removals) run() {
	defer close(r.ended)
	var removed bool // by a transaction whose messages have not all arrived yet
	var waits bool   // a report is due
	for {
		messages, err := r.nl.Receive()
		switch {
		case err == nil:
			for _, m := range messages {
				removed = removed || r.removes(m)
				if removed && kind(m) == unix.NFT_MSG_NEWGEN {
					removed, waits = false, true
				}
			}
		case errors.Is(err, unix.ENOBUFS): // messages were lost, perhaps about a removal
			r.elements.Store(true)
			waits = true
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return
		}
		var due time.Time // time of the next report; zero if none waits
		if now := time.Now(); waits {
			if due = r.pace.due(); !now.Before(due) {
				r.pace.report(now)
				r.report()
				due, waits = time.Time{}, false
			}
		}
		if r.nl.SetReadDeadline(due) != nil {
			return
		}
	}
}

func (r *Removals) report() {
	select {
	case r.c <- struct{}{}:
	default: // the last report has not been read yet
	}
}

// removes reports whether a message says that another program has removed something from the table.
func (r *Removals) removes(m netlink.Message) bool {
	elements := false
	switch kind(m) {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
	case unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		elements = true
	default:
		return false
	}
	const tableName = 1 // NFTA_TABLE_NAME; the same number in chains, rules, sets and lists of elements
	if m.Header.PID == r.own || len(m.Data) == 0 || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	ad, err := attributesOf(m.Data)
	if err != nil {
		return false
	}
	for ad.Next() {
		if ad.Type() == tableName {
			ours := ad.String() == r.table.Name
			if ours && elements {
				r.elements.Store(true)
			}
			return ours
		}
	}
	return false
}

// kind returns the type of a message of nftables, without its subsystem.
func kind(m netlink.Message) uint8 { return uint8(m.Header.Type) }

// pace limits the rate of reports. The first is due at once. The gap before the next one doubles with each report, from
// firstGap to mostGap. It starts again at firstGap if no report was made for calm after one was allowed.
type pace struct {
	last time.Time // of the last report
	gap  time.Duration
}

const (
	firstGap = 50 * time.Millisecond
	mostGap  = 5 * time.Second
	calm     = 10 * time.Second
)

// due returns the time from which the next report may be made.
func (p *pace) due() time.Time { return p.last.Add(p.gap) }

// report notes that one was made.
func (p *pace) report(now time.Time) {
	switch {
	case p.last.IsZero() || now.Sub(p.due()) >= calm:
		p.gap = firstGap
	default:
		p.gap = min(2*p.gap, mostGap)
	}
	p.last = now
}
