package chain

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	language "github.com/detour-collective/dcol/internal/trace/probe"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// recorded is a path that keeps what is sent into it.
type recorded struct {
	*Chain
	mu   *sync.Mutex
	sent *[]*packet.Packet
}

func (r recorded) Send(b []byte) error {
	if p, err := packet.Parse(slices.Clone(b)); err == nil {
		r.mu.Lock()
		*r.sent = append(*r.sent, p)
		r.mu.Unlock()
	}
	return r.Chain.Send(b)
}

// traceText traces with a probe of the language, as the command does.
func traceText(t *testing.T, text string, from, to netip.Addr, hops []Hop) (path *trace.Path, sent []*packet.Packet) {
	t.Helper()
	layers, err := language.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	built, err := layers.Build(language.Env{Source: from, Destination: to, Random: seeded()})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		net := recorded{New(hops, time.Millisecond, Multipath(80)), new(sync.Mutex), &sent}
		defer net.Close()
		if path, err = trace.Run(t.Context(), net, built.Packet, trace.Options{FixedID: built.FixedID}); err != nil {
			t.Fatal(err)
		}
	})
	return path, sent
}

// An identification of the user's choice is kept, and hops are told apart all the same.
func TestFixedIdentification(t *testing.T) {
	for _, test := range []struct {
		probe    string
		box      middlebox.Kind
		quotes   middlebox.Quotes
		findings int
		distance int
	}{
		{"ip{id=7} / tcp{dst=80} / mss(1460)", middlebox.ClampMSS, middlebox.QuoteAll, 1, 6},
		{"ip{id=7} / tcp{dst=80} / mss(1460)", middlebox.None, middlebox.Quote8, 0, 6},
		{"ip{id=7} / tcp{dst=80} / mss(1460)", middlebox.RandomiseSeq, middlebox.QuoteAll, 1, 6},
		{"ip{id=7} / tcp{dst=80, flags=16} / raw(\"data\")", middlebox.None, middlebox.Quote8, 0, 0},
		{"ip{id=7} / udp{dst=53}", middlebox.None, middlebox.Quote8, 0, 0},
		{"ip{id=7} / udp{dst=53} / raw(\"a question\")", middlebox.None, middlebox.QuoteAll, 0, 0},
		{"ip{id=7} / icmp{}", middlebox.None, middlebox.Quote8, 0, 6},
	} {
		hops := make([]Hop, 5)
		for i := range hops {
			hops[i].Quotes = test.quotes
		}
		hops[2].Box = test.box
		path, sent := traceText(t, test.probe, alice.Addr(), bob.Addr(), hops)
		if path.Strays > 0 || len(path.Findings) != test.findings || path.Distance != test.distance {
			t.Errorf("%s through %q: %d strays, %+v, distance %d", test.probe, test.box, path.Strays, path.Findings, path.Distance)
		}
		for i := range hops {
			if h, ok := path.Hop(i + 1); !ok || len(h.Quotes) != 1 || h.Quotes[0].From != Address(i + 1)[0] {
				t.Errorf("%s through %q: hop %d is %+v", test.probe, test.box, i+1, h)
			}
		}
		for _, p := range sent {
			if p.V4.ID != 7 && (p.TCP == nil || !p.TCP.Flags.Has(packet.RST)) {
				t.Errorf("%s: a packet with identification %d", test.probe, p.V4.ID)
				break
			}
		}
	}
}

// Load balancers choose the way by addresses and ports, or by the first bytes behind the IP header: ports, or ICMP's type,
// code and checksum. They are the same in all probes of a trace.
func TestFlowIsConstant(t *testing.T) {
	for _, text := range []string{
		"IP / tcp{dst=80}", "ip{id=7} / tcp{dst=80}", "IP / udp{dst=53}", "ip{id=7} / udp{dst=53}", `IP / udp{dst=53} / raw("x")`,
		"IP / icmp{}", `IP / icmp{} / raw("x")`, `IP / icmp{} / raw("\xff\xffx")`,
		"IPv6 / tcp{dst=80}", "IPv6 / udp{dst=53}", `IPv6 / udp{dst=53} / raw("x")`, "IPv6 / icmp{}", `IPv6 / icmp{} / raw("xyz")`,
	} {
		from, to := alice.Addr(), bob.Addr()
		if text[:4] == "IPv6" {
			from, to = alice6.Addr(), bob6.Addr()
		}
		path, sent := traceText(t, text, from, to, make([]Hop, 12))
		var first []byte
		for _, p := range sent {
			if p.TCP != nil && p.TCP.Flags.Has(packet.RST) {
				continue // at the end
			}
			header := 40
			if p.V4 != nil {
				header = 20
			}
			flow := slices.Clone(p.Bytes()[header : header+4])
			if first == nil {
				first = flow
			}
			if !bytes.Equal(flow, first) {
				t.Errorf("%s: a packet begins with %x, the first with %x", text, flow, first)
				break
			}
		}
		if path.Strays > 0 || len(path.Findings) > 0 || len(sent) < 12 || len(path.FullQuotes()) != 12 {
			t.Errorf("%s: %d strays, %+v, %d packets, full quotes %v", text, path.Strays, path.Findings, len(sent), path.FullQuotes())
		}
	}
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(7, 8)) }
