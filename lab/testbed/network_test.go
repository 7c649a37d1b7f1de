package testbed

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces and TUN devices")
	}
}

func build(t *testing.T, s Spec) *Network {
	t.Helper()
	needRoot(t)
	n, err := Build(t.Context(), s, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// run returns what a command on a host prints, without surrounding space.
func run(t *testing.T, h *Host, arg ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := h.Command(ctx, arg[0], arg[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %q: %v\n%s", h.Name(), arg, err, out)
	}
	return strings.TrimSpace(string(out))
}

// reach returns nil if addr answers, even with a reset.
func reach(from *Host, addr netip.Addr) error { return reachWithin(from, addr, 5*time.Second) }

func reachWithin(from *Host, addr netip.Addr, limit time.Duration) error {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 9).String(), limit)
		if err == nil {
			return conn.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return err
	})
}

// backends returns all that this kernel has.
func backends(t *testing.T) []string {
	t.Helper()
	list := []string{BackendEmulator, BackendVeth}
	n := build(t, pair(BackendVeth, LinkParams{}))
	if n.Host("left").Do(probeNetem) == nil {
		list = append(list, BackendNetem)
	}
	return list
}

// triangle returns a network with two paths from client to server. The direct one has the lower cost.
func triangle(backend string, p LinkParams) Spec {
	return Spec{
		Hosts: []HostSpec{{Name: "client"}, {Name: "r1", Forward: true}, {Name: "r2", Forward: true},
			{Name: "r3", Forward: true}, {Name: "server"}},
		Links: []LinkSpec{
			{Name: "1", A: "client", B: "r1", AtoB: p, BtoA: p},
			{Name: "direct", A: "r1", B: "r2", AtoB: p, BtoA: p},
			{Name: "3", A: "r2", B: "server", AtoB: p, BtoA: p},
			{Name: "up", A: "r1", B: "r3", AtoB: p, BtoA: p},
			{Name: "over", A: "r3", B: "r2", AtoB: p, BtoA: p},
		},
		Backend: backend,
	}
}

func TestEveryHostReachesEveryAddress(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			n := build(t, triangle(backend, LinkParams{}))
			if n.Backend() != backend {
				t.Errorf("backend is %q", n.Backend())
			}
			for _, from := range n.hosts {
				for _, to := range n.hosts {
					for _, link := range to.links {
						v4, v6 := to.AddrOn(link)
						for _, addr := range []netip.Addr{v4, v6} {
							if err := reach(from, addr); err != nil {
								t.Errorf("from %s to %s: %v", from.Name(), to.Name(), err)
							}
						}
					}
				}
			}
		})
	}
}

var discard = slog.New(slog.DiscardHandler)
