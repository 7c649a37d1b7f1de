package paths

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// Ports are the source and the destination port of a flow.
type Ports struct{ Source, Destination uint16 }

// Wire is a Prober that sends packets over a network.
type Wire struct {
	net      trace.Network
	flow     Template
	ports    []Ports // of each flow
	unused   []uint16
	sent     int
	base     uint32 // added to the marks of probes
	probes   map[uint32]*wireProbe
	byID     map[uint16]*wireProbe
	slowest  time.Duration
	silentAt map[int]bool // whether a distance gave no answer
}

// Template has the fields that all probes share.
type Template struct {
	Source, Destination netip.Addr
	Protocol            uint8 // packet.ProtocolTCP or packet.ProtocolUDP
	Port                uint16
	Random              *rand.Rand
}

type wireProbe struct {
	at    time.Time
	ports Ports
	reply *Reply
}

const (
	pace         = time.Millisecond // the time between two probes
	firstTimeout = time.Second
	leastTimeout = 150 * time.Millisecond
	mostTries    = 3 // the number of rounds in a row without an answer after which Probe stops
	limited      = time.Second
)

// The source ports of flows are from lowPorts to before lowEnd, and from highPorts on. Linux gives the ports between
// lowEnd and highPorts to connections, so no probe concerns a connection of this host.
const (
	highPorts = 61000
	lowPorts  = 20000
	lowEnd    = 32768
)

// UnusedPorts returns the source ports for flows, the highest first.
func UnusedPorts() (ports []uint16) {
	for port := 1<<16 - 1; port >= lowPorts; port-- {
		if port >= highPorts || port < lowEnd {
			ports = append(ports, uint16(port))
		}
	}
	return ports
}

// NewWire returns a prober. Each of its flows has a different source port. Their order is random.
func NewWire(net trace.Network, t Template) *Wire {
	w := &Wire{net: net, flow: t, base: t.Random.Uint32(), probes: map[uint32]*wireProbe{}, byID: map[uint16]*wireProbe{},
		silentAt: map[int]bool{}}
	for _, area := range [][2]int{{highPorts, 1 << 16}, {lowPorts, lowEnd}} {
		for _, i := range t.Random.Perm(area[1] - area[0]) {
			w.unused = append(w.unused, uint16(area[0]+i))
		}
	}
	return w
}

// Ports returns the ports of a flow.
func (w *Wire) Ports(flow int) Ports {
	for len(w.ports) <= flow {
		next := Ports{Destination: w.flow.Port}
		if len(w.unused) > 0 {
			next.Source, w.unused = w.unused[0], w.unused[1:]
		}
		w.ports = append(w.ports, next)
	}
	return w.ports[flow]
}

// Add adds a flow with these ports, and returns its number.
func (w *Wire) Add(p Ports) int {
	w.ports = append(w.ports, p)
	return len(w.ports) - 1
}

// Sent returns the number of packets sent so far.
func (w *Wire) Sent() int { return w.sent }

// Probe implements Prober. Routers limit the rate of their answers. So unanswered probes are sent again as long as some
// answers come, at most twice as many at a time as were answered last.
func (w *Wire) Probe(ctx context.Context, requests []Request) ([]Reply, error) {
	replies := make([]Reply, len(requests))
	open := make([]int, 0, len(requests)) // indexes of requests
	for i := range requests {
		open = append(open, i)
	}
	size := len(open)
	for tries := 0; len(open) > 0 && tries < w.tries(requests[0].Distance); {
		round := open[:min(size, len(open))]
		waiting := map[int]*wireProbe{}
		for _, i := range round {
			p, err := w.send(ctx, requests[i])
			if err != nil {
				return nil, err
			}
			waiting[i] = p
		}
		answered, err := w.hear(ctx, waiting)
		if err != nil {
			return nil, err
		}
		var left []int
		for _, i := range open {
			if p := waiting[i]; p != nil && p.reply != nil {
				replies[i] = *p.reply
				continue
			}
			left = append(left, i)
		}
		size = max(1, 2*answered)
		tries++
		if open = left; answered > 0 {
			tries = 0
		}
		if len(open) > 0 && tries < mostTries {
			if err := wait(ctx, limited); err != nil {
				return nil, err
			}
		}
	}
	w.silentAt[requests[0].Distance] = len(open) == len(requests)
	return replies, nil
}

// Once implements Shooter.
func (w *Wire) Once(ctx context.Context, requests []Request) ([]Reply, error) {
	replies, waiting := make([]Reply, len(requests)), map[int]*wireProbe{}
	for i, r := range requests {
		p, err := w.send(ctx, r)
		if err != nil {
			return nil, err
		}
		waiting[i] = p
	}
	if _, err := w.hear(ctx, waiting); err != nil {
		return nil, err
	}
	for i, p := range waiting {
		if p.reply != nil {
			replies[i] = *p.reply
		}
	}
	return replies, nil
}

// tries returns the number of rounds without an answer after which Probe stops at a distance.
func (w *Wire) tries(distance int) int {
	if w.silentAt[distance] {
		return 1
	}
	return mostTries
}

func (w *Wire) timeout() time.Duration {
	if w.slowest == 0 {
		return firstTimeout
	}
	return min(firstTimeout, max(leastTimeout, 3*w.slowest))
}

// send sends one probe, and waits until another one may be sent.
func (w *Wire) send(ctx context.Context, r Request) (*wireProbe, error) {
	w.sent++
	ports := w.Ports(r.Flow)
	if ports.Source == 0 {
		return nil, fmt.Errorf("%w: all source ports are used", ErrProbes)
	}
	p, mark, id, err := w.build(ports, r.Distance)
	if err != nil {
		return nil, err
	}
	probe := &wireProbe{at: time.Now(), ports: ports}
	w.probes[mark], w.byID[id] = probe, probe
	if err := w.net.Send(p.Bytes()); err != nil {
		return nil, fmt.Errorf("send a probe: %w", err)
	}
	return probe, wait(ctx, pace)
}

// build returns a probe with a mark by which its answer is recognised. The mark of a TCP probe is its sequence number.
// The mark of a UDP probe is its source port and checksum; the payload gives each probe another checksum. Every router
// quotes these fields, because they are among the first eight bytes. The probes of a flow are equal in the fields by
// which routers balance load.
func (w *Wire) build(ports Ports, distance int) (p *packet.Packet, mark uint32, id uint16, err error) {
	id = uint16(w.sent)
	if id == 0 {
		id = 1 // the kernel would replace 0
	}
	p = &packet.Packet{}
	if w.flow.Destination.Is4() {
		p.V4 = &packet.IPv4{TTL: uint8(distance), ID: id, Src: w.flow.Source, Dst: w.flow.Destination}
	} else {
		p.V6 = &packet.IPv6{HopLimit: uint8(distance), Src: w.flow.Source, Dst: w.flow.Destination}
	}
	if w.flow.Protocol == packet.ProtocolUDP {
		p.UDP = &packet.UDP{SrcPort: ports.Source, DstPort: ports.Destination}
		p.Payload = []byte{byte(id >> 8), byte(id)}
		if err := p.Seal(); err != nil {
			return nil, 0, 0, fmt.Errorf("build a probe: %w", err)
		}
		return p, udpMark(p.UDP), id, nil
	}
	const apart = 16 // the distance between marks, because an answer acknowledges the next number
	mark = w.base + uint32(w.sent)*apart
	p.TCP = &packet.TCP{
		SrcPort: ports.Source, DstPort: ports.Destination, Seq: mark, Flags: packet.SYN, Window: 65535,
		Options: []packet.Option{packet.MSS(1460)},
	}
	if err := p.Seal(); err != nil {
		return nil, 0, 0, fmt.Errorf("build a probe: %w", err)
	}
	return p, mark, id, nil
}

func udpMark(h *packet.UDP) uint32 { return uint32(h.SrcPort)<<16 | uint32(h.Checksum) }

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// hear receives answers until all probes in waiting are answered, or no more answers come.
func (w *Wire) hear(ctx context.Context, waiting map[int]*wireProbe) (answered int, err error) {
	timer := time.NewTimer(w.timeout())
	defer timer.Stop()
	for {
		answered = 0
		for _, p := range waiting {
			if p.reply != nil {
				answered++
			}
		}
		if answered == len(waiting) {
			return answered, nil
		}
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case <-timer.C:
			return answered, nil
		case a, ok := <-w.net.Arrivals():
			if !ok {
				return answered, trace.ErrClosed
			}
			w.take(a)
		}
	}
}

// take records an answer with its probe, if it is one.
func (w *Wire) take(a trace.Arrival) {
	p, err := packet.Parse(a.Bytes)
	if err != nil || p == nil {
		return
	}
	quote, err := p.Quote()
	if err != nil {
		w.answered(p, a.At)
		return
	}
	q, _ := packet.ParseQuote(quote.Bytes)
	if q == nil || q.Dst() != w.flow.Destination {
		return
	}
	probe, source := w.quoted(q)
	if probe == nil || probe.reply != nil {
		return
	}
	exceeded := p.V4 != nil && p.ICMP.Type == packet.TimeExceeded || p.V6 != nil && p.ICMP.Type == packet.V6TimeExceeded
	probe.reply = &Reply{
		From: p.Src(), RTT: a.At.Sub(probe.at), Last: !exceeded || p.Src() == w.flow.Destination,
		Reached:    p.Src() == w.flow.Destination,
		Translated: source != probe.ports.Source || q.Src() != w.flow.Source, Renumbered: source != probe.ports.Source,
	}
	w.slowest = max(w.slowest, probe.reply.RTT)
}

// quoted finds the probe that an ICMP error quotes, and returns it with the quoted source port. A NAT may have changed
// all fields except the identification.
func (w *Wire) quoted(q *packet.Packet) (probe *wireProbe, source uint16) {
	const quoted = 8
	if q.Cut > 0 && q.Cut < quoted {
		return nil, 0
	}
	switch {
	case q.TCP != nil:
		probe, source = w.probes[q.TCP.Seq], q.TCP.SrcPort
	case q.UDP != nil:
		probe, source = w.probes[udpMark(q.UDP)], q.UDP.SrcPort
	default:
		return nil, 0
	}
	if probe == nil && q.V4 != nil {
		probe = w.byID[q.V4.ID]
	}
	return probe, source
}

// answered records a TCP segment from the destination with its probe.
func (w *Wire) answered(p *packet.Packet, at time.Time) {
	if p.TCP == nil || p.Src() != w.flow.Destination {
		return
	}
	probe := w.probes[p.TCP.Ack-1]
	if probe == nil || probe.reply != nil || p.TCP.DstPort != probe.ports.Source {
		return
	}
	probe.reply = &Reply{From: p.Src(), RTT: at.Sub(probe.at), Last: true, Reached: true}
	w.slowest = max(w.slowest, probe.reply.RTT)
}
