package forward

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/packet"
)

// challenge is the answer to a SYN with this tuple.
func challenge(syn sample, seq, ack uint32) sample {
	return sample{tuple: syn.tuple.reversed(), ttl: 64, flags: packet.ACK, seq: seq, ack: ack, window: 0xffff, bare: true, to: syn.to}
}

// answered checks that a SYN is turned into the challenge ACK with these numbers.
func (h *host) answered(t testing.TB, name string, syn sample, seq, ack uint32) {
	t.Helper()
	h.becomes(t, name, syn, 0, isSentOn, challenge(syn, seq, ack))
}

// syn is a SYN from the end's address. Its number is not one of the connection's.
func (e *end) syn(h *host) sample {
	p := e.packet(h, packet.SYN)
	p.seq, p.ack, p.payload = e.next+far, 0, nil
	return p
}

// A SYN of a connection on the fast path is answered in the receiver's place, and does not come to the
// kernel. The RST with which a host without the connection responds ends it.
func TestSYNIsChallenged(t *testing.T) {
	h := newHost(t)
	for _, flow := range []Flow{flow4, flow6} {
		for side := range 2 {
			ends := h.connection(t, flow, 1000, 1<<32-500)
			e, other := ends[side], ends[1-side]
			h.answered(t, "SYN", e.syn(h), e.acked-1, other.acked)
			h.stops(t, "another soon after it", e.syn(h))
			state, err := h.Look(flow)
			if at := [2]Numbers{state.Seen.Origin, state.Seen.Reply}[side].Challenged; err != nil || at == 0 || state.Ended {
				t.Errorf("%+v, %v", state, err)
			}
			h.check(t, "data after a SYN", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
			reset := e.packet(h, packet.RST)
			reset.seq, reset.ack = other.acked, 0
			h.check(t, "RST", reset, 0, nil)
			if _, over := h.passed(t, flow); !over {
				t.Error("it has not ended")
			}
			if _, err := h.Remove(flow); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A SYN is dropped while the connection is watched, if it is more than a SYN, and if it comes too soon after
// another.
func TestSYNIsDropped(t *testing.T) {
	h := newHost(t)
	for _, flow := range []Flow{flow4, flow6} {
		for _, e := range h.watch(t, flow, 1000, 2000) {
			h.stops(t, "watched", e.syn(h))
		}
		if _, err := h.Remove(flow); err != nil {
			t.Fatal(err)
		}
		ends := h.connection(t, flow, 1000, 2000)
		client, server := ends[0], ends[1]

		withData := client.syn(h)
		withData.payload = []byte("data")
		h.stops(t, "with data", withData)
		withOptions := client.syn(h)
		if withOptions.ipOptions = []byte{6, 0, 1, 4, 0, 0, 0, 0}; flow == flow4 {
			withOptions.ipOptions = []byte{1, 1, 1, 1}
		}
		h.stops(t, "with options", withOptions)
		withTrailer := client.syn(h)
		withTrailer.trailer = make([]byte, 20)
		h.stops(t, "with a trailer", withTrailer)
		h.answered(t, "a SYN", client.syn(h), client.acked-1, server.acked)

		asked := time.Now()
		for {
			if verdict, _ := h.run(t, client.syn(h).frame(), 0); verdict == isSentOn {
				break
			} else if verdict != isGone || time.Since(asked) > 20*time.Second {
				t.Fatalf("asked again: verdict %d", verdict)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if after := time.Since(asked); after < 400*time.Millisecond {
			t.Errorf("answered again after %v", after)
		}
		if _, err := h.Remove(flow); err != nil {
			t.Fatal(err)
		}
	}
	nowhere := flow4
	nowhere.Origin.Src = netip.MustParseAddrPort("10.8.0.1:40000")
	ends := h.connection(t, nowhere, 1, 2)
	h.stops(t, "no route back", ends[0].syn(h))
}

// Whatever the SYN is like, the answer has a right checksum.
func TestAnySYN(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(r *rapid.T) {
		flow := rapid.SampledFrom([]Flow{flow4, flow6}).Draw(r, "flow")
		number := rapid.Uint32()
		ends := h.connection(t, flow, number.Draw(r, "client's number"), number.Draw(r, "server's number"))
		side := rapid.IntRange(0, 1).Draw(r, "side")
		e, other := ends[side], ends[1-side]
		p := e.syn(h)
		p.seq, p.ack = number.Draw(r, "seq"), number.Draw(r, "ack")
		p.flags |= rapid.SampledFrom([]packet.Flags{0, packet.ECE | packet.CWR, packet.PSH, packet.URG}).Draw(r, "flags")
		p.window = rapid.Uint16().Draw(r, "window")
		p.ttl = rapid.ByteRange(1, 255).Draw(r, "TTL")
		p.bare = true
		p.tcpOptions = rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(r, "options")
		for len(p.tcpOptions)%4 != 0 {
			p.tcpOptions = append(p.tcpOptions, 1)
		}
		h.answered(t, "SYN", p, e.acked-1, other.acked)
		if _, err := h.Remove(flow); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}

// A network card may have summed up a packet. The sum is kept right, as whoever gets the packet from here may
// believe it.
func TestSumOfTheCard(t *testing.T) {
	h := newHost(t)
	h.cardSums = true
	if err := h.tryCardSums(); errors.Is(err, unix.EINVAL) {
		t.Skip("this kernel's test runs know no sum of a card (Linux 6.17)")
	}
	for _, flow := range []Flow{flow4, flow6} {
		ends := h.connection(t, flow, 1000, 70000)
		for i, e := range ends {
			h.check(t, "data", e.packet(h, packet.ACK), 0, sentOn(flow, e.way))
			syn := e.syn(h)
			syn.bare = true // of a packet that becomes shorter the kernel forgets the sum
			h.answered(t, "SYN", syn, e.acked-1, ends[1-i].acked)
		}
	}
}
