package keepalive

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/mptcptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, s *mptcptest.Pair) *Prober {
	t.Helper()
	p := cgrouptest.Open(t, s.Client, Open)
	t.Cleanup(func() { p.Close() })
	return p
}

// Probes are sent on the subflow for which they are wanted, which may be the first one, and on no other.
func TestProbes(t *testing.T) {
	for _, c := range []struct{ name, client, server string }{
		{"IPv4", "10.0.1.2", "10.0.1.1"},
		{"IPv6", "2001:db8::2", "2001:db8::1"},
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, first %v", c.name, first), func(t *testing.T) {
				s := mptcptest.NewPair(t, c.client, c.server)
				p := open(t, s)
				s.Connect(t, c.server)
				probed, other := s.Join, s.First
				if first {
					probed, other = other, probed
				}
				idle := func(m mptcp.Metrics) bool { return m.LastAckRecv > 1500*time.Millisecond }
				s.Eventually(t, probed, "nothing comes before there are probes", idle)
				s.Eventually(t, other, "nothing comes before there are probes", idle)

				if err := p.Begin(probed.Local, probed.Remote); err != nil {
					t.Fatal(err)
				}
				s.Nudge(t, probed)
				answered := s.Metrics(t, probed).SegsIn + 2
				s.Eventually(t, probed, "probes are answered", func(m mptcp.Metrics) bool { return m.SegsIn >= answered })
				if m := s.Metrics(t, other); !idle(m) || m.Probes > 0 {
					t.Errorf("the other subflow is probed, too: %+v", m)
				}
				s.Swallow(t, probed)
				s.Eventually(t, probed, "probes have no answer", func(m mptcp.Metrics) bool { return m.Probes >= 2 })
				s.Server.Output(t, "nft", "delete table inet hole")
				s.Eventually(t, probed, "probes are answered again", func(m mptcp.Metrics) bool { return m.Probes == 0 })

				// What the subflow had before is known although many others are to be probed meanwhile.
				for i := range uint16(10000) {
					if err := p.Begin(netip.AddrPortFrom(probed.Local.Addr(), i), probed.Remote); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.End(probed.Local, probed.Remote); err != nil {
					t.Fatal(err)
				}
				s.Nudge(t, probed)
				s.Eventually(t, probed, "nothing comes when there are no probes any more", idle)
			})
		}
	}
}

// The first probe of an idle subflow is sent at once, and the time of its answer tells the round trip. Ticks of the kernel's
// clock and a late sample make it a few milliseconds longer.
func TestAnswersTellTheRoundTrip(t *testing.T) {
	const delay, most = 40 * time.Millisecond, 10 * time.Millisecond
	s := mptcptest.NewDistantPair(t, "10.0.1.2", "10.0.1.1", delay)
	p := open(t, s)
	s.Connect(t, "10.0.1.1")
	for deadline := time.Now().Add(time.Minute); ; { // a busy machine is late now and then
		s.Eventually(t, s.Join, "the subflow is idle", func(m mptcp.Metrics) bool { return m.LastAckRecv > 1200*time.Millisecond })
		before := s.Metrics(t, s.Join)
		begun := time.Now()
		if err := p.Begin(s.Join.Local, s.Join.Remote); err != nil {
			t.Fatal(err)
		}
		s.Nudge(t, s.Join)
		var after mptcp.Metrics
		s.Eventually(t, s.Join, "the probe is answered", func(m mptcp.Metrics) bool {
			after = m
			return m.SegsIn > before.SegsIn
		})
		took := time.Since(begun) - after.LastAckRecv
		t.Logf("%v", took)
		if after.DataSegsIn != before.DataSegsIn || min(after.LastDataRecv, after.LastDataSent) < before.LastAckRecv {
			t.Fatalf("the answer counts as data: before %+v, after %+v", before, after)
		}
		if took < 2*delay-most {
			t.Fatalf("%v, shorter than the path", took)
		}
		if after.SegsIn == before.SegsIn+1 && took <= 2*delay+most {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no round trip within %v of %v", most, 2*delay)
		}
		if err := p.End(s.Join.Local, s.Join.Remote); err != nil {
			t.Fatal(err)
		}
		s.Nudge(t, s.Join)
	}
}

// The agent's unit has no more.
func TestTwoCapabilitiesAreEnough(t *testing.T) { cgrouptest.TwoCapabilitiesAreEnough(t, Open) }
