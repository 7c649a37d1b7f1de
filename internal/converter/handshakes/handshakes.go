// Package handshakes learns which servers speak no MPTCP from the handshakes of this host's own connections. An nftables
// table notes each SYN that offers MPTCP, and whether the SYN+ACK that answers it accepts. So one connection is enough,
// however short. Of other packets, the table looks at TCP's flags only, and it needs no connection tracking.
//
// Any other SYN ends the notice of an earlier one with the same addresses and ports, because the answer to it shows nothing:
// the kernel repeats lost SYNs without the offer, and an answer with a reset leaves the notice behind.
//
// A SYN+ACK counts before the kernel's TCP has checked it. So whoever can send this host packets in the server's name, and
// guesses the port of a handshake while it lasts, can make a server count as plain for known.PlainFor.
package handshakes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft/match"
)

const (
	// offeredMost bounds the handshakes that are watched at a time, and plainMost the servers that are remembered.
	// If a set is full, no more is learned until an entry expires.
	offeredMost = 1 << 12
	plainMost   = 1 << 14
	// offeredFor is longer than the kernel offers MPTCP in the SYNs of one connection and an answer needs.
	offeredFor = 30 * time.Second
)

var (
	table = nft.Table{Name: "dcol_handshakes", Owned: true}
	ports = nft.Set{Name: "excluded_ports", Key: []nft.Type{nft.InetService}}
)

// family holds the sets for IPv4 or IPv6.
type family struct {
	match.Family
	excluded nft.Set
	offered  nft.Set // servers with our end of the connection
	plain    nft.Set // servers
}

var families = [2]family{newFamily(match.IPv4, "4"), newFamily(match.IPv6, "6")}

func newFamily(of match.Family, suffix string) family {
	server := []nft.Type{of.Addr, nft.InetService}
	return family{
		Family:   of,
		excluded: nft.Set{Name: "excluded" + suffix, Key: []nft.Type{of.Addr}, Interval: true},
		offered:  nft.Set{Name: "offered" + suffix, Key: slices.Concat(server, server), Timeout: true, Dynamic: true, Size: offeredMost},
		plain:    nft.Set{Name: "plain" + suffix, Key: server, Timeout: true, Dynamic: true, Size: plainMost},
	}
}

// familyOf returns the family of a server, and the server's key in the sets.
func familyOf(server netip.AddrPort) (f family, key []byte) {
	addr := server.Addr().Unmap()
	f = families[1]
	if addr.Is4() {
		f = families[0]
	}
	return f, append(binary.BigEndian.AppendUint16(addr.AsSlice(), server.Port()), 0, 0)
}

// Exclude lists the servers about which nothing is learned.
type Exclude struct {
	Networks []netip.Prefix
	Ports    []uint16
}

func (x Exclude) equal(to Exclude) bool {
	return slices.Equal(x.Networks, to.Networks) && slices.Equal(x.Ports, to.Ports)
}

// Table is an installed table. The kernel removes it when its process ends.
type Table struct {
	mu      sync.Mutex
	conn    *nft.Conn // nil: closed
	exclude Exclude
	next    time.Time // when the servers are listed again, at the earliest
}

var errClosed = errors.New("the table of handshakes is closed")

// Open installs the table in the calling thread's network namespace.
func Open(x Exclude) (*Table, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	err = conn.Commit("install nftables table "+table.Name, func(tx *nft.Tx) {
		tx.AddTable(table)
		tx.AddSet(table, ports)
		for _, f := range families {
			for _, s := range []nft.Set{f.excluded, f.offered, f.plain} {
				tx.AddSet(table, s)
			}
		}
		addExcluded(tx, x)
		tx.AddChains(table, chains())
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Table{conn: conn, exclude: x}, nil
}

// Close removes the table.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return nil
	}
	// The end of the connection is not enough: a process that is just being started may hold it open for a moment.
	err := errors.Join(t.conn.DeleteTable(table), t.conn.Close())
	t.conn = nil
	return err
}

// Exclude changes about which servers nothing is learned.
func (t *Table) Exclude(x Exclude) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return errClosed
	}
	if x.equal(t.exclude) {
		return nil
	}
	err := t.conn.Commit("change what is not learned", func(tx *nft.Tx) {
		for _, s := range []nft.Set{ports, families[0].excluded, families[1].excluded} {
			tx.FlushSet(table, s)
		}
		addExcluded(tx, x)
	})
	if err == nil {
		t.exclude = x
	}
	return err
}

func addExcluded(tx *nft.Tx, x Exclude) {
	tx.AddElements(table, ports, match.Ports(x.Ports))
	for _, f := range families {
		tx.AddElements(table, f.excluded, match.Prefixes(f.Of(choice.ExcludedNetworks(x.Networks))))
	}
}

// Plain returns when a server last answered an offer of MPTCP without it. ok is false if it has not done so lately.
func (t *Table) Plain(server netip.AddrPort) (at time.Time, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return time.Time{}, false, errClosed
	}
	f, key := familyOf(server)
	e, ok, err := t.conn.Element(table, f.plain, key)
	return seen(e, time.Now()), ok, err
}

// seen returns when the entry of a server was made or renewed.
func seen(e nft.Element, now time.Time) time.Time { return now.Add(e.Expires - known.PlainFor) }

// listShare is the time between two listings as a multiple of the time that a listing takes.
const listShare = 100

// All returns when each server last answered an offer of MPTCP without it. A listing of many servers takes time, so All
// returns nothing if it was called shortly before.
func (t *Table) All() (map[netip.AddrPort]time.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	if t.conn == nil || began.Before(t.next) {
		return nil, nil
	}
	all := make(map[netip.AddrPort]time.Time)
	for _, f := range families {
		list, err := t.conn.Elements(table, f.plain)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for _, e := range list {
			addr, ok := netip.AddrFromSlice(e.Key[:min(int(f.Size), len(e.Key))])
			if !ok || len(e.Key) < int(f.Size)+2 {
				return nil, fmt.Errorf("list nftables set %s: a key of %d bytes", f.plain.Name, len(e.Key))
			}
			all[netip.AddrPortFrom(addr, binary.BigEndian.Uint16(e.Key[f.Size:]))] = seen(e, now)
		}
	}
	t.next = time.Now().Add(listShare * time.Since(began))
	return all, nil
}

// Priorities of the chains. They see the addresses that programs use: output comes before the translation of
// destinations (-100), and input after that of sources (100), and after the firewall.
const (
	outputPriority = -150
	inputPriority  = 150
)

// Names of the chains that others lead to.
const (
	begins   = "begins"   // a SYN of this host
	answered = "answered" // a SYN+ACK to this host
	learn    = "learn"    // the answer to an offer
)

// chains returns the table's chains. A packet that is no SYN meets one rule on its way out or in, which ends at its flags.
func chains() []nft.Chain {
	pass := match.Verdict(expr.VerdictReturn, "")
	beginning := nft.Chain{Name: begins, Rules: [][]expr.Any{
		match.Rule(match.NotUnicast(), pass),
		match.Rule(match.DestinationPort(), match.In(ports), pass),
	}}
	answering, learning := nft.Chain{Name: answered, Rules: [][]expr.Any{match.Rule(match.Cut(), pass)}}, nft.Chain{Name: learn}
	for _, f := range families {
		beginning.Rules = append(beginning.Rules,
			match.Rule(f.Is(), f.Destination(), match.In(f.excluded), pass),
			match.Rule(f.Is(), match.Capable(), f.Calling(), match.Put(f.offered, offeredFor), pass),
			match.Rule(f.Is(), f.Calling(), match.Drop(f.offered)))
		answering.Rules = append(answering.Rules,
			match.Rule(f.Is(), f.Answered(), match.In(f.offered), match.Drop(f.offered), match.Verdict(expr.VerdictGoto, learn)))
		learning.Rules = append(learning.Rules,
			match.Rule(f.Is(), match.Capable(), f.Answering(), match.Drop(f.plain), pass),
			match.Rule(f.Is(), f.Answering(), match.Put(f.plain, known.PlainFor)))
	}
	return []nft.Chain{
		{
			Name:  "output",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: outputPriority},
			Rules: [][]expr.Any{match.Rule(match.TCP(), match.Flags(match.SYN), match.Verdict(expr.VerdictGoto, begins))},
		},
		{
			Name:  "input",
			Hook:  &nft.Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: inputPriority},
			Rules: [][]expr.Any{match.Rule(match.TCP(), match.Flags(match.SYN|match.ACK), match.Verdict(expr.VerdictGoto, answered))},
		},
		beginning, answering, learning,
	}
}
