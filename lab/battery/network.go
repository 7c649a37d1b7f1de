package battery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// The hosts and links of networks. A mesh has a host for each uplink of the client and the server, a star one for each
// waypoint; numbers begin at 1.
const (
	clientHost, serverHost = "client", "server"
	sharedLink             = "shared"
)

func clientSide(i int) string   { return fmt.Sprintf("a%d", i) }
func serverSide(j int) string   { return fmt.Sprintf("b%d", j) }
func pathLink(k int) string     { return fmt.Sprintf("path%d", k) }
func clientUplink(i int) string { return fmt.Sprintf("up%d", i) }
func serverUplink(j int) string { return fmt.Sprintf("down%d", j) }
func waypointName(k int) string { return fmt.Sprintf("w%d", k) }
func leg(k int) string          { return fmt.Sprintf("leg%d", k) }

// line is one path: what it carries from the client to the server and back.
type line struct {
	up, down float64 // Mbit/s
	rtt      time.Duration
	loss     float64 // 0..1, of packets to the client
	lossUp   float64 // of packets to the server
	radio    testbed.Radio
}

// even is a line with the same rate in both directions.
func even(rate float64, rtt time.Duration) line { return line{up: rate, down: rate, rtt: rtt} }

// params returns the line's directions. Queues hold 100 ms, and at least 32 packets: on lines of less than 3.8 Mbit/s that
// is more.
func (l line) params() (up, down testbed.LinkParams) {
	direction := func(rate, loss float64) testbed.LinkParams {
		return testbed.LinkParams{Rate: int64(rate * 1e6), Delay: l.rtt / 2, Loss: loss, Queue: max(int(rate*1e6/8/10), 32*1500)}
	}
	return direction(l.up, l.lossUp), direction(l.down, l.loss)
}

// shape is the network of a test: n uplinks of the client, m of the server, and a line for each pair of them, those of
// the client's first uplink first. With bottleneck, all pairs share that line instead.
type shape struct {
	n, m       int
	lines      []line
	bottleneck *line
	uplinks    bool // dcol has the client's uplinks, too, in place of members
	announces  bool // dcol is on the server and announces its addresses; the client has the kernel's path manager
}

func (s shape) paths() int { return s.n * s.m }

// mesh builds the network with hosts of several uplinks.
func (s shape) mesh() testbed.Spec {
	subflows := maxSubflows
	spec := testbed.Spec{Hosts: []testbed.HostSpec{{Name: clientHost, Subflows: &subflows}, {Name: serverHost, Subflows: &subflows}}}
	link := func(name, a, b string, up, down testbed.LinkParams) *testbed.LinkSpec {
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: a, B: b, AtoB: up, BtoA: down})
		return &spec.Links[len(spec.Links)-1]
	}
	var none testbed.LinkParams
	for i := 1; i <= s.n; i++ {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: clientSide(i), Forward: true})
		link(clientUplink(i), clientHost, clientSide(i), none, none)
	}
	for j := 1; j <= s.m; j++ {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: serverSide(j), Forward: true})
		link(serverUplink(j), serverSide(j), serverHost, none, none)
	}
	if s.bottleneck != nil {
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: "x", Forward: true}, testbed.HostSpec{Name: "y", Forward: true})
		up, down := s.bottleneck.params()
		link(sharedLink, "x", "y", up, down)
		for i := 1; i <= s.n; i++ {
			link(fmt.Sprintf("x%d", i), clientSide(i), "x", none, none)
		}
		for j := 1; j <= s.m; j++ {
			link(fmt.Sprintf("y%d", j), "y", serverSide(j), none, none)
		}
		return spec
	}
	for k, l := range s.lines {
		up, down := l.params()
		link(pathLink(k+1), clientSide(k/s.m+1), serverSide(k%s.m+1), up, down).Radio = l.radio
	}
	return spec
}

// star builds the network of a host with one uplink: the first line is the direct path, each other one leads through a
// waypoint. With a bottleneck all share it.
func (s shape) star() testbed.Spec {
	subflows := maxSubflows
	spec := testbed.Spec{Hosts: []testbed.HostSpec{
		{Name: clientHost}, {Name: serverHost, Subflows: &subflows}, {Name: "west", Forward: true}, {Name: "east", Forward: true},
	}}
	var none testbed.LinkParams
	link := func(name, a, b string, up, down testbed.LinkParams, cost int) {
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: name, A: a, B: b, AtoB: up, BtoA: down, Cost: cost})
	}
	link("home", clientHost, "west", none, none, 1)
	if s.bottleneck != nil {
		up, down := s.bottleneck.params()
		link(sharedLink, "east", serverHost, up, down, 1)
	} else {
		link("site", "east", serverHost, none, none, 1)
	}
	for k := 1; k <= s.paths(); k++ {
		up, down := none, none
		if s.bottleneck == nil {
			up, down = s.lines[k-1].params()
		}
		if k == 1 {
			link(pathLink(1), "west", "east", up, down, 1)
			continue
		}
		spec.Hosts = append(spec.Hosts, testbed.HostSpec{Name: waypointName(k)})
		link(pathLink(k), "west", waypointName(k), up, down, 100)
		link(leg(k), waypointName(k), "east", none, none, 100)
	}
	return spec
}

// maxSubflows is the limit of hosts: more than any test opens.
const maxSubflows = 8

// bed is a built network with an implementation.
type bed struct {
	crew.Crew
	shape shape
	impl  implementation
}

// isStar reports whether the client has one uplink, and reaches the other paths by members.
func (b *bed) isStar() bool { return b.impl == dcol && !b.shape.uplinks && !b.shape.announces }

// build builds the network of a shape for an implementation. Close it also after ctx has ended.
func build(ctx context.Context, o Options, s shape, impl implementation, seed uint64, logs string) (*bed, error) {
	b := &bed{shape: s, impl: impl}
	spec := s.mesh()
	if b.isStar() {
		spec = s.star()
	}
	spec.Seed, spec.Backend = seed, testbed.BackendEmulator
	net, err := testbed.Build(ctx, spec, o.Log)
	if err != nil {
		return nil, err
	}
	b.Crew = crew.Crew{Network: net, Programs: o.Programs, Logs: logs}
	if !b.isStar() {
		err = b.routeBySource(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// routeBySource has each address of client and server use its own uplink, as hosts with several providers do.
func (b *bed) routeBySource(ctx context.Context) error {
	route := func(host, link, beyond string, table int) error {
		own, _ := b.Host(host).AddrOn(link)
		gateway, _ := b.Host(beyond).AddrOn(link)
		device := b.Host(host).Interface(link)
		number := fmt.Sprint(table)
		if _, err := b.Run(ctx, host, "ip", "route", "add", "default", "via", gateway.String(), "dev", device, "table", number); err != nil {
			return err
		}
		_, err := b.Run(ctx, host, "ip", "rule", "add", "from", own.String(), "lookup", number)
		return err
	}
	for i := 1; i <= b.shape.n; i++ {
		if err := route(clientHost, clientUplink(i), clientSide(i), 100+i); err != nil {
			return err
		}
	}
	for j := 1; j <= b.shape.m; j++ {
		if err := route(serverHost, serverUplink(j), serverSide(j), 100+j); err != nil {
			return err
		}
	}
	return nil
}

// clientAddr and serverAddr return the address of an uplink, from 1 on. A star has one of each.
func (b *bed) clientAddr(i int) netip.Addr {
	if b.isStar() {
		return b.Host(clientHost).Addr4()
	}
	a, _ := b.Host(clientHost).AddrOn(clientUplink(i))
	return a
}

func (b *bed) serverAddr(j int) netip.Addr {
	if b.isStar() {
		return b.Host(serverHost).Addr4()
	}
	a, _ := b.Host(serverHost).AddrOn(serverUplink(j))
	return a
}

// pathOf returns the number of the path of a subflow, from 1 on, by its addresses at the client; 0: none.
func (b *bed) pathOf(local, remote netip.Addr) int {
	if b.isStar() {
		if remote == b.serverAddr(1) {
			return 1
		}
		for k := 2; k <= b.shape.paths(); k++ {
			for _, link := range []string{pathLink(k), leg(k)} {
				if a, _ := b.Host(waypointName(k)).AddrOn(link); a == remote {
					return k
				}
			}
		}
		return 0
	}
	for i := 1; i <= b.shape.n; i++ {
		for j := 1; j <= b.shape.m; j++ {
			if b.clientAddr(i) == local && b.serverAddr(j) == remote {
				return (i-1)*b.shape.m + j
			}
		}
	}
	return 0
}
