package client

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// While the role runs, an outage turns MPTCP off for a minute instead of Linux's hour. A value that the operator
// has set stays, and so does everything after the role's end.
func TestOutagesAreShort(t *testing.T) {
	const key = "net/mptcp/blackhole_timeout"
	if _, err := netstate.Sysctl(key); err != nil {
		t.Skip("this kernel does not turn MPTCP off after an outage (Linux 6.12)")
	}
	for before, during := range map[string]string{"3600": "60", "0": "0", "7200": "7200"} {
		netnstest.New(t).Must(t, func() error {
			if err := netstate.SetSysctl(key, before); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h, err := openHost(ctx, &config.Config{StateDir: t.TempDir(), Client: config.Client{Mptcpify: config.MptcpifyNone}}, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			if got, err := netstate.Sysctl(key); err != nil || got != during {
				t.Errorf("of %s it makes %s, not %s: %v", before, got, during, err)
			}
			if err := h.close(); err != nil {
				return err
			}
			if got, err := netstate.Sysctl(key); err != nil || got != before {
				t.Errorf("of %s it leaves %s: %v", before, got, err)
			}
			return nil
		})
	}
}

// The path manager is told which addresses identify the host's network, and a bridge does not change them.
func TestNetworkIsTold(t *testing.T) {
	ns, router := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t,
		netnstest.End{NS: ns, Name: "eth0", Addresses: []string{"10.1.0.1/24"}},
		netnstest.End{NS: router, Name: "eth0", Addresses: []string{"10.1.0.2/24"}})
	ns.Route(t, "0.0.0.0/0", "10.1.0.2")
	var routes *netstate.Addresses
	ns.Must(t, func() (err error) { routes, err = netstate.OpenAddresses(); return err })
	defer routes.Close()
	h := &host{routes: routes, log: slog.New(slog.DiscardHandler)}
	want := []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")}
	is := func(when string) {
		t.Helper()
		if local, ok := h.localAddrs(nil); !ok || !slices.Equal(local.Network, want) {
			t.Errorf("%s: told %+v", when, local)
		}
	}
	is("at first")
	ns.Output(t, "ip", "link", "add", "docker0", "type", "bridge")
	ns.Output(t, "ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
	ns.Output(t, "ip", "link", "set", "docker0", "up")
	is("with a bridge")
}
