package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	sampleEvery = 250 * time.Millisecond
	// recent is the period in which bytes count for a fault.
	recent = time.Second
	// carrying is the least number of recent bytes on a path or at a member that carries programs'
	// traffic. Sessions alone need much less.
	carrying = 8_000
	// talking is the same for a coordinator, which carries no traffic of programs.
	talking = 200
)

// sample has the bytes that each link had carried at a moment, in both directions.
type sample struct {
	at    time.Time
	bytes map[string]uint64
}

// monitor watches a world while faults strike it.
type monitor struct {
	inspect inspector

	mu       sync.Mutex
	samples  []sample // of the last seconds
	late     time.Duration
	rerouted []string // what took the client's own traffic
	failed   error
}

// run samples until ctx ends.
func (m *monitor) run(ctx context.Context) {
	clock := time.NewTicker(sampleEvery)
	defer clock.Stop()
	for {
		m.look()
		select {
		case <-clock.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *monitor) look() {
	s := sample{at: time.Now(), bytes: map[string]uint64{}}
	var late time.Duration
	if err := checkMemory(); err != nil {
		m.fail(err)
		return
	}
	for link := range m.inspect.base {
		ab, ba, err := m.inspect.LinkStats(link)
		if err != nil {
			m.fail(err)
			return
		}
		s.bytes[link] = ab.Bytes + ba.Bytes
		late = max(late, ab.Late.P99, ba.Late.P99)
	}
	rerouted, err := m.inspect.rerouted()
	if err != nil {
		m.fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = max(m.late, late)
	m.rerouted = append(m.rerouted, rerouted...)
	m.samples = append(m.samples, s)
	if len(m.samples) > int(4*recent/sampleEvery) {
		m.samples = m.samples[1:]
	}
}

func (m *monitor) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = cmp.Or(m.failed, err)
}

// carried returns the bytes that a link carried recently.
func (m *monitor) carried(link string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.samples) == 0 {
		return 0
	}
	last := m.samples[len(m.samples)-1]
	first := last
	for _, s := range m.samples {
		if last.at.Sub(s.at) <= recent {
			first = s
			break
		}
	}
	return last.bytes[link] - first.bytes[link]
}

// busiest returns the honest waypoint that carried the most bytes recently.
func (m *monitor) busiest() string {
	best, most := m.inspect.waypoints[0], uint64(0)
	for _, name := range m.inspect.waypoints {
		if n := m.carried(inLink(name)); n > most {
			best, most = name, n
		}
	}
	return best
}

// rerouted describes changes that lead the client's own traffic elsewhere: a new route from its own address to the server,
// or a public address on its host.
func (w inspector) rerouted() (found []string, err error) {
	own, device := w.client(), w.Host(alice).Interface(w.clientLink())
	err = w.Host(alice).Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		present := false
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.IP)
			addr = addr.Unmap()
			present = present || addr == own
			if !addr.IsPrivate() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				found = append(found, fmt.Sprintf("the client's host has the address %v", addr))
			}
		}
		if !present {
			return nil // it is moving
		}
		routes, err := netlink.RouteGetWithOptions(net.IP(w.Host(server).Addr().AsSlice()), &netlink.RouteGetOptions{SrcAddr: own.AsSlice()})
		if err != nil || len(routes) == 0 {
			return nil //nolint:nilerr // between two networks there is no route
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err == nil && link.Attrs().Name != device {
			found = append(found, fmt.Sprintf("what the client sends from %v to the server leaves by %s", own, link.Attrs().Name))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the client's routes: %w", err)
	}
	return found, nil
}
