package testbed

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/stun"
)

func homeOf(kind NATKind) Spec {
	s := home()
	s.Hosts[3].NAT = NAT{Inside: []string{"lan"}, Kind: kind}
	return s
}

// uplink returns a home with one uplink, as homes have, and three hosts beyond it.
func uplink(kind NATKind) Spec {
	s := Spec{
		Hosts:   []HostSpec{{Name: "inside"}, {Name: "router", Forward: true, NAT: NAT{Inside: []string{"lan"}, Kind: kind}}, {Name: "internet", Forward: true}},
		Links:   []LinkSpec{{Name: "lan", A: "inside", B: "router"}, {Name: "wan", A: "router", B: "internet"}},
		Backend: BackendVeth,
	}
	for _, name := range []string{"one", "two", "three"} {
		s.Hosts = append(s.Hosts, HostSpec{Name: name})
		s.Links = append(s.Links, LinkSpec{Name: name, A: name, B: "internet"})
	}
	return s
}

const probePort = 45672

// probe is a UDP socket of a host for one test only.
type probe struct{ *net.UDPConn }

func (p probe) ReadOther(_ context.Context, b []byte) (int, netip.AddrPort, error) {
	n, from, err := p.ReadFromUDPAddrPort(b)
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err
}

func (p probe) WriteOther(b []byte, to netip.AddrPort) error {
	_, err := p.WriteToUDPAddrPort(b, to)
	return err
}

// probed starts a prober on a host.
func probed(t *testing.T, h *Host) *nat.Prober {
	t.Helper()
	var p probe
	var other *net.UDPConn
	err := h.Do(func() (err error) {
		if p.UDPConn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: probePort}); err != nil {
			return err
		}
		other, err = net.ListenUDP("udp4", nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	prober := nat.NewProber(p, other, slog.New(slog.DiscardHandler))
	ended := make(chan error)
	go func() { ended <- prober.Run(context.Background()) }()
	t.Cleanup(func() {
		p.Close()
		other.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return prober
}

// The members' NAT prober identifies each kind.
func TestNATKinds(t *testing.T) {
	for kind, want := range map[NATKind]string{
		Symmetric: "symmetric NAT", PortRestricted: "port-restricted cone NAT",
		AddressRestricted: "address-restricted cone NAT", FullCone: "full cone NAT",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel() // it mostly waits for what does not come
			n := build(t, uplink(kind))
			inside := n.Host("inside")
			p := probed(t, inside)
			at := func(h string) netip.AddrPort { return netip.AddrPortFrom(n.Host(h).Addr4(), probePort) }
			three := probed(t, n.Host("three"))
			probed(t, n.Host("one"))
			probed(t, n.Host("two"))
			e := p.Examine(t.Context(), nat.Question{
				Own: []netip.Addr{inside.Addr4()}, Port: probePort, Observers: []nat.Observer{{Member: "one", At: at("one")}, {Member: "two", At: at("two")}},
				Third: func(ctx context.Context, _ []netip.Addr, outside netip.AddrPort, id stun.ID) error {
					three.Knock(ctx, []netip.AddrPort{outside}, id)
					return nil
				},
			})
			wan, _ := n.Host("router").AddrOn("wan")
			found := nat.Conclude(e)
			if found.Kind() != want || len(e.Sightings) != 2 || e.Sightings[0].At.Addr() != wan {
				t.Errorf("it is taken for a %s: %+v\n%s", found.Kind(), e, run(t, n.Host("router"), "nft", "list", "ruleset"))
			}
		})
	}
}

// Two hosts outside and inside of a NAT each, of all kinds, meet by knocking where
// that is possible, and only there.
func TestKnockingThroughNATs(t *testing.T) {
	kinds := []NATKind{Symmetric, PortRestricted, AddressRestricted, FullCone}
	// A symmetric NAT has another port towards each end, so what waits for one port does not let it in.
	hopeless := []NATKind{Symmetric, PortRestricted}
	for i, here := range kinds {
		for _, there := range kinds[i:] {
			t.Run(string(here)+" and "+string(there), func(t *testing.T) {
				t.Parallel()
				s := uplink(here)
				s.Hosts = append(s.Hosts, HostSpec{Name: "other"}, HostSpec{Name: "gate", Forward: true, NAT: NAT{Inside: []string{"flat"}, Kind: there}})
				s.Links = append(s.Links, LinkSpec{Name: "flat", A: "other", B: "gate"}, LinkSpec{Name: "adsl", A: "gate", B: "internet"})
				n := build(t, s)
				observer := netip.AddrPortFrom(n.Host("one").Addr4(), probePort)
				probed(t, n.Host("one"))
				ends := []*nat.Prober{probed(t, n.Host("inside")), probed(t, n.Host("other"))}
				var seen []netip.AddrPort
				for _, p := range ends {
					at, err := p.Ask(t.Context(), observer)
					if err != nil {
						t.Fatal(err)
					}
					seen = append(seen, at)
				}
				id := stun.NewID()
				met := make(chan bool)
				for i, p := range ends {
					go func() {
						time.Sleep(time.Duration(i) * 200 * time.Millisecond)
						from, err := p.Knock(t.Context(), []netip.AddrPort{seen[1-i]}, id)
						if err == nil {
							_, err = p.Ask(t.Context(), from)
						}
						met <- err == nil
					}()
				}
				results := []bool{<-met, <-met}
				if got, want := slices.Contains(results, true), here != Symmetric || !slices.Contains(hopeless, there); got != want {
					t.Errorf("they met: %v, want %v", got, want)
				}
			})
		}
	}
}
