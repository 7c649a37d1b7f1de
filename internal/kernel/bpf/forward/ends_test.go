package forward

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/packet"
)

// far is more than the program lets numbers jump by any rule.
const far = 1 << 28

// end is one end of a connection in a model of TCP.
type end struct {
	way    Tuple  // of its packets, as they come
	next   uint32 // its next sequence number
	acked  uint32 // the other end's data that it has
	length int    // of its next packet's data
}

// sees is whether the program knows of what the end has sent last.
func (e *end) packet(h *host, flags packet.Flags) sample {
	p := h.packet(e.way)
	p.flags, p.seq, p.ack, p.payload = flags, e.next, e.acked, make([]byte, e.length)
	return p
}

// connection is watched with some numbers, and then forwarded.
func (h *host) connection(t testing.TB, flow Flow, client, server uint32) [2]*end {
	t.Helper()
	if err := h.Watch(flow, Passed{}); err != nil {
		t.Fatal(err)
	}
	ends := [2]*end{{way: flow.Origin, next: client, acked: server}, {way: flow.Reply, next: server, acked: client}}
	for _, e := range ends {
		h.check(t, "watched", e.packet(h, packet.ACK), 0, nil)
	}
	if err := h.Forward(flow); err != nil {
		t.Fatal(err)
	}
	return ends
}

// sentOn is the tuple of a flow's packets as they leave.
func sentOn(flow Flow, way Tuple) *Tuple {
	out := flow.Origin.reversed()
	if way == flow.Origin {
		out = flow.Reply.reversed()
	}
	return &out
}

// stops checks that a packet does not come to the kernel, and is not sent on either.
func (h *host) stops(t testing.TB, name string, p sample) {
	t.Helper()
	if verdict, _ := h.run(t, p.frame(), 0); verdict != isGone {
		t.Errorf("%s: verdict %d", name, verdict)
	}
}

// A FIN or RST that the receiver waits for ends the connection, from either side.
func TestEnd(t *testing.T) {
	h := newHost(t)
	for _, flow := range []Flow{flow4, flow6} {
		for side := range 2 {
			for name, change := range map[string]func(*sample, *end){
				"FIN":                             func(p *sample, _ *end) { p.flags = packet.FIN | packet.ACK },
				"FIN with data":                   func(p *sample, _ *end) { p.flags |= packet.FIN; p.payload = make([]byte, 300) },
				"FIN with data sent before":       func(p *sample, _ *end) { p.flags |= packet.FIN; p.seq -= 200; p.payload = make([]byte, 200) },
				"FIN with data partly sent":       func(p *sample, _ *end) { p.flags |= packet.FIN; p.seq -= 200; p.payload = make([]byte, 300) },
				"RST":                             func(p *sample, _ *end) { p.flags = packet.RST },
				"RST with an acknowledgement":     func(p *sample, _ *end) { p.flags = packet.RST | packet.ACK },
				"RST after what was acknowledged": func(p *sample, other *end) { p.flags = packet.RST; p.seq = other.acked },
			} {
				ends := h.connection(t, flow, 1000, 1<<32-500)
				e, other := ends[side], ends[1-side]
				e.length = 1000
				h.check(t, "data", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
				e.next += 1000
				e.length = 0
				other.acked += 400
				h.check(t, "acknowledgement", other.packet(h, packet.ACK), 0, sentOn(flow, other.way))
				p := e.packet(h, packet.ACK)
				change(&p, other)
				h.check(t, name, p, 0, nil)
				for _, e := range ends {
					h.check(t, "data after "+name, e.packet(h, packet.ACK), 0, nil)
				}
				if _, over := h.passed(t, flow); !over {
					t.Errorf("%s ends nothing", name)
				}
				if _, err := h.Remove(flow); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// What a stranger sends who does not know the numbers ends nothing, and never comes to
// connection tracking, which would believe it.
func TestStrangersEndNothing(t *testing.T) {
	h := newHost(t)
	hopByHop, options := []byte{6, 0, 1, 4, 0, 0, 0, 0}, []byte{1, 1, 1, 1}
	many := make([]byte, 0, 20*8)
	for range 19 {
		many = append(many, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	many = append(many, hopByHop...)
	for _, flow := range []Flow{flow4, flow6} {
		four := flow == flow4
		ends := h.connection(t, flow, 1000, 70000)
		for _, e := range ends {
			for _, wrong := range []uint32{1, ^uint32(0), 2 << 20, far, 1 << 31} {
				for _, flags := range []packet.Flags{packet.RST, packet.RST | packet.ACK, packet.FIN | packet.ACK, packet.FIN | packet.RST | packet.SYN, packet.SYN | packet.ACK} {
					name := fmt.Sprintf("flags %#x, number off by %d", flags, int32(wrong))
					p := e.packet(h, flags)
					p.seq += wrong
					h.check(t, name, p, 0, sentOn(flow, e.way))
					if flags == packet.SYN|packet.ACK {
						continue
					}
					last := p
					last.ttl = 1
					h.stops(t, name+", last hop", last)
					padded := p
					padded.trailer = make([]byte, 20)
					h.stops(t, name+", with a trailer", padded)
					unusual := p
					if unusual.ipOptions = hopByHop; four {
						unusual.ipOptions = options
					}
					h.stops(t, name+", with options", unusual)
					fragment := p
					if fragment.fragment = 0x2000; !four {
						fragment.extension, fragment.ipOptions = 44, []byte{6, 0, 0, 1, 0, 0, 0, 9}
					}
					h.stops(t, name+", a first fragment", fragment)
					fragment.truncateTo = 14 + 20 + 16
					if !four {
						fragment.truncateTo = 14 + 40 + 8 + 16
					}
					h.stops(t, name+", a fragment without the flags", fragment)
					if !four {
						hidden := p
						hidden.extension, hidden.ipOptions = 60, many
						h.stops(t, name+", behind many headers", hidden)
					}
				}
			}
			syn := e.packet(h, packet.SYN)
			syn.seq += far
			h.stops(t, "SYN", syn)
			if _, over := h.passed(t, flow); over {
				t.Fatal("ended")
			}
			h.check(t, "data", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
		}
	}
}

// While a connection is watched everything but SYNs goes up, for conntrack to judge, and userspace
// sees when a packet did not fit.
func TestWatched(t *testing.T) {
	h := newHost(t)
	for _, flow := range []Flow{flow4, flow6} {
		if err := h.Watch(flow, Passed{}); err != nil {
			t.Fatal(err)
		}
		e := &end{way: flow.Reply, next: 1000, acked: 50, length: 10}
		for _, step := range []struct {
			name   string
			change func(*sample)
			want   Numbers
		}{
			{"first", nil, Numbers{1, 1010, 50}},
			{"next", func(p *sample) { p.seq += 10 }, Numbers{1, 1020, 50}},
			{"late", nil, Numbers{1, 1020, 50}},
			{"RST", func(p *sample) { p.flags = packet.RST; p.seq += far }, Numbers{1, 1020, 50}},
			{"an answer to a SYN", func(p *sample) { p.flags |= packet.SYN; p.seq += far }, Numbers{1, 1020, 50}},
			{"FIN", func(p *sample) { p.flags |= packet.FIN; p.seq += far }, Numbers{1, 1020, 50}},
			{"a stranger's", func(p *sample) { p.seq += far }, Numbers{2, 1010 + far, 50}},
			{"one that acknowledges what was not sent", func(p *sample) { p.seq += far; p.ack += far }, Numbers{3, 1010 + far, 50 + far}},
			{"its own", nil, Numbers{4, 1010, 50}},
		} {
			p := e.packet(h, packet.ACK)
			if step.change != nil {
				step.change(&p)
			}
			h.check(t, step.name, p, 0, nil)
			if got, err := h.Look(flow); err != nil || got.Seen != (Seen{Reply: step.want}) || got.Ended {
				t.Errorf("%s: %+v, %v, want %+v", step.name, got, err, step.want)
			}
		}
		syn := e.packet(h, packet.SYN)
		h.stops(t, "SYN", syn)
		if syn.ipOptions = []byte{6, 0, 1, 4, 0, 0, 0, 0}; flow == flow4 {
			syn.ipOptions = []byte{1, 1, 1, 1}
		}
		h.stops(t, "SYN with options", syn)
	}
}

// Two ends talk, packets are lost before and behind the waypoint, acknowledgements jump, and a
// stranger sends what he likes. Nothing he sends ends the connection, and after all that its own
// end does.
func TestAnyConversation(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(r *rapid.T) {
		flow := rapid.SampledFrom([]Flow{flow4, flow6}).Draw(r, "flow")
		first := rapid.Uint32()
		ends := h.connection(t, flow, first.Draw(r, "client's number"), first.Draw(r, "server's number"))
		defer func() {
			if _, err := h.Remove(flow); err != nil {
				t.Fatal(err)
			}
		}()
		noted := [2]uint32{ends[0].next, ends[1].next} // the highest number that came by
		side := rapid.IntRange(0, 1)
		steps := rapid.IntRange(0, 40).Draw(r, "steps")
		for range steps {
			i := side.Draw(r, "side")
			e, other := ends[i], ends[1-i]
			switch rapid.SampledFrom([]string{"data", "lost", "again", "acknowledge", "stranger"}).Draw(r, "step") {
			case "data":
				e.length = rapid.IntRange(0, 1400).Draw(r, "bytes")
				h.check(t, "data", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
				e.next += uint32(e.length)
				noted[i] = e.next
			case "lost": // before they came here
				if e.next-other.acked < 8<<20 {
					e.next += uint32(rapid.IntRange(0, 4<<20).Draw(r, "bytes lost"))
				}
			case "again":
				e.length = 100
				p := e.packet(h, packet.ACK)
				p.seq = other.acked - 100
				h.check(t, "again", p, 0, sentOn(flow, e.way))
			case "acknowledge": // all that came by
				e.acked = noted[1-i]
				e.length = 0
				h.check(t, "acknowledgement", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
				noted[i] = e.next
			case "stranger":
				p := e.packet(h, rapid.SampledFrom([]packet.Flags{packet.ACK, packet.ACK | packet.FIN, packet.RST, packet.RST | packet.ACK}).Draw(r, "flags"))
				p.seq += rapid.Uint32Range(far, -far&(1<<32-1)).Draw(r, "seq off by")
				p.ack = rapid.Uint32().Draw(r, "ack")
				h.check(t, "stranger's", p, 0, sentOn(flow, e.way))
			}
			if _, over := h.passed(t, flow); over {
				t.Fatal("ended by a stranger")
			}
		}
		i := side.Draw(r, "who ends it")
		e := ends[i]
		ends[1-i].acked = noted[i]
		ends[1-i].length = 0
		h.check(t, "last acknowledgement", ends[1-i].packet(h, packet.ACK), 0, sentOn(flow, ends[1-i].way))
		p := e.packet(h, rapid.SampledFrom([]packet.Flags{packet.RST, packet.FIN | packet.ACK}).Draw(r, "end"))
		p.payload = nil
		p.seq = noted[i]
		h.check(t, "end", p, 0, nil)
		if _, over := h.passed(t, flow); !over {
			t.Fatal("its own end does not end it")
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}
