package trace_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// tampering is a network of three routers and a destination that answers by a script: each byte and its argument tell what becomes of
// the answer to a probe.
type tampering struct {
	t        *testing.T
	script   []byte
	sent     []*packet.Packet
	arrivals chan trace.Arrival
	forged   bool // something arrived that no honest host sends
}

const routersBefore = 3

// What a byte of the script does, modulo their number.
const (
	answers    = iota // as it should
	again             // so many times more
	late              // so many times 20 ms later
	earlier           // to an earlier probe
	quotesLess        // with so many bytes less in the quote
	truncated         // the packet ends so many bytes early
	lost              // does not arrive
	changed           // has other bits in one byte
	of                // is what follows in the script
	waysOfReply
)

func (n *tampering) Arrivals() <-chan trace.Arrival { return n.arrivals }

func (n *tampering) next() (b byte) {
	if len(n.script) > 0 {
		b, n.script = n.script[0], n.script[1:]
	}
	return b
}

func (n *tampering) Send(b []byte) error {
	p, err := packet.Parse(b)
	if err != nil {
		n.t.Fatalf("a probe that is no packet: %v", err)
	}
	if p.TCP != nil && p.TCP.Flags.Has(packet.RST) {
		return nil
	}
	n.sent = append(n.sent, p)
	way, arg := n.next(), int(n.next())
	switch way % waysOfReply {
	case answers:
		n.deliver(0, n.reply(p, 0))
	case again:
		for range 1 + arg {
			n.deliver(0, n.reply(p, 0))
		}
	case late:
		n.deliver(time.Duration(arg)*20*time.Millisecond, n.reply(p, 0))
	case earlier:
		n.deliver(0, n.reply(n.sent[arg%len(n.sent)], 0))
	case quotesLess:
		n.deliver(0, n.reply(p, arg))
	case truncated:
		r := n.reply(p, 0)
		n.deliver(0, r[:max(0, len(r)-arg)])
	case changed:
		n.forged = true
		r := n.reply(p, 0)
		r[arg%len(r)] ^= n.next()
		n.deliver(0, r)
	case of:
		n.forged = true
		r := n.script[:min(arg, len(n.script))]
		n.script = n.script[len(r):]
		n.deliver(0, slices.Clone(r))
	}
	return nil
}

// deliver has a packet arrive after a time. What finds no room is lost, as in a socket.
func (n *tampering) deliver(after time.Duration, b []byte) {
	time.AfterFunc(after, func() {
		select {
		case n.arrivals <- trace.Arrival{At: time.Now(), Bytes: b}:
		default:
		}
	})
}

// reply returns what answers a probe. A quote has so many bytes less than the probe, but 28 at least; over IPv6, 48.
func (n *tampering) reply(p *packet.Packet, less int) []byte {
	var distance int
	if p.V4 != nil {
		distance = int(p.V4.TTL)
	} else {
		distance = int(p.V6.HopLimit)
	}
	var r *packet.Packet
	switch {
	case distance <= routersBefore:
		r = n.problem(p, distance, less, packet.TimeExceeded, packet.V6TimeExceeded, 0, 0)
	case p.TCP != nil:
		r = packet.Segment(p.To(), p.From(), packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.SYN | packet.ACK}, nil)
	case p.ICMP != nil:
		echo := *p.ICMP
		if echo.Type = trace.EchoReply; p.V6 != nil {
			echo.Type = trace.V6EchoReply
		}
		r = n.between(p.Dst(), p.Src())
		r.ICMP, r.Payload = &echo, p.Payload
	case p.UDP != nil:
		r = n.problem(p, 0, less, packet.Unreachable, packet.V6Unreachable, 3, 4) // no such port
	default:
		r = n.problem(p, 0, less, packet.Unreachable, packet.V6Unreachable, 2, 1) // no such protocol, prohibited
	}
	if err := r.Seal(); err != nil {
		n.t.Fatal(err)
	}
	return r.Bytes()
}

func (n *tampering) between(from, to netip.Addr) *packet.Packet {
	if from.Is4() {
		return &packet.Packet{V4: &packet.IPv4{TTL: 64, Src: from, Dst: to}}
	}
	return &packet.Packet{V6: &packet.IPv6{HopLimit: 64, Src: from, Dst: to}}
}

// problem returns an ICMP error of a router, or of the destination if distance is 0.
func (n *tampering) problem(p *packet.Packet, distance, less int, v4, v6, code4, code6 uint8) *packet.Packet {
	from, m, least := p.Dst(), packet.ICMP{Type: v4, Code: code4}, 28
	if p.V6 != nil {
		m, least = packet.ICMP{Type: v6, Code: code6}, 48
	}
	if distance > 0 {
		from = netip.AddrFrom4([4]byte{10, 0, 0, byte(distance)})
		if p.V6 != nil {
			from = netip.AddrFrom16([16]byte{0xfd, 15: byte(distance)})
		}
	}
	r := n.between(from, p.Src())
	r.ICMP = &m
	b := p.Bytes()
	if err := r.SetQuote(b[:max(min(least, len(b)), len(b)-less)]); err != nil {
		n.t.Fatal(err)
	}
	return r
}

var fuzzed = []string{
	"IP / TCP / mss(1460)", "IPv6 / TCP / mss(1460)", "IP / udp{dst=99} / raw('data')", "IPv6 / udp{dst=99}", "IP / ICMP", "IPv6 / ICMP",
	"ip{id=7} / TCP", "ip{proto=132} / raw('sctp')",
}

// FuzzRun: whatever arrives, a trace ends, with hops in order and findings in intervals. Of answers that are late, lost, repeated,
// cut, or to earlier probes, it makes no findings.
func FuzzRun(f *testing.F) {
	for kind := range fuzzed {
		for way := range byte(waysOfReply) {
			f.Add(byte(kind), slices.Repeat([]byte{way, 7}, 40))
		}
		mixed := rand.New(rand.NewPCG(1, uint64(kind)))
		for range 4 {
			script := make([]byte, 200)
			for i := range script {
				script[i] = byte(mixed.Uint32())
			}
			f.Add(byte(kind), script)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, script []byte) {
		synctest.Test(t, func(t *testing.T) { run(t, fuzzed[int(kind)%len(fuzzed)], script) })
	})
}

func run(t *testing.T, text string, script []byte) {
	parsed, err := probe.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	env := probe.Env{Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("198.51.100.2"), Random: rand.New(rand.NewPCG(1, 2))}
	if six, _ := parsed.IPv6(); six {
		env.Source, env.Destination = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:1::2")
	}
	built, err := parsed.Build(env)
	if err != nil {
		t.Fatal(err)
	}
	const most = 8
	n := &tampering{t: t, script: script, arrivals: make(chan trace.Arrival, 100)}
	path, err := trace.Run(t.Context(), n, built.Packet, trace.Options{MaxHops: most, FixedID: built.FixedID})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute) // until all has arrived
	if path.Took > 2*time.Minute || path.Sent != len(n.sent) || path.Distance < 0 || path.Distance > most {
		t.Errorf("took %v, sent %d of %d, distance %d", path.Took, path.Sent, len(n.sent), path.Distance)
	}
	last := 0
	for _, h := range path.Hops {
		if h.Distance <= last || h.Distance > most || len(h.Quotes) > 8 {
			t.Errorf("hop %d after %d, %d quotes", h.Distance, last, len(h.Quotes))
		}
		last = h.Distance
		for _, q := range h.Quotes {
			if q.RTT < 0 {
				t.Errorf("hop %d answered %v before it was asked", h.Distance, -q.RTT)
			}
		}
	}
	for _, found := range path.Findings {
		if found.After >= found.By || !n.forged {
			t.Errorf("%s: %+v", text, found)
		}
	}
	if !n.forged && path.Sure && path.Distance <= routersBefore { // it is further if all answers from there are lost
		t.Errorf("%s: the destination is at %d, behind %d routers", text, path.Distance, routersBefore)
	}
}
