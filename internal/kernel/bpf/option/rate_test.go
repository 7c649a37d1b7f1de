package option

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/sending"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// askRate is a configuration that asks for a rate.
func askRate(bitsPerSecond int64) Config {
	return Config{Ask: []tcpopt.Request{{Option: tcpopt.Rate, Value: tcpopt.RateValue(bitsPerSecond)}}}
}

// A download from a peer that grants a rate is not faster.
func TestRateIsKept(t *testing.T) {
	const rate, size, least = 8e6, 2e6, 1500 * time.Millisecond // a burst at the beginning is allowed
	for _, mptcp := range []bool{false, true} {
		h := newHosts(t)
		asking, granted := open(t, h.client, askRate(rate)), open(t, h.server, granting())
		client, server := connect(t, h.client, listen(t, h.server, serverAddress, mptcp), mptcp)
		download(t, client, server, 100<<10) // in which the request arrives
		if r := asking.await(t, tcpopt.Rate); r.Verdict != tcpopt.Sent {
			t.Errorf("%+v", r)
		}
		if r := granted.await(t, tcpopt.Rate); r.Verdict != tcpopt.Granted || r.Granted != tcpopt.RateValue(rate) {
			t.Errorf("%+v", r)
		}
		began := time.Now()
		download(t, client, server, size)
		if took := time.Since(began); took < least {
			t.Errorf("MPTCP %v: %v bytes took %v at %v bit/s", mptcp, size, took, rate)
		}
		granted.none(t) // of the copy
	}
}

// A rate is asked of each subflow to a host that grants it, and of none to one that does not.
func TestRateOfJoinedSubflows(t *testing.T) {
	const second = "192.0.2.3"
	for name, c := range map[string]struct {
		server Config
		want   []string
	}{
		"granted":     {granting(), []string{clientAddress, second}},
		"not granted": {Config{Accept: []tcpopt.Option{tcpopt.Congestion}, Bounds: bounds}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHosts(t)
			for _, args := range [][]string{
				{"addr", "add", second + "/24", "dev", "v"}, {"mptcp", "limits", "set", "subflows", "2"},
				{"mptcp", "endpoint", "add", second, "subflow"},
			} {
				in(t, h.client, args)
			}
			in(t, h.server, []string{"mptcp", "limits", "set", "subflows", "2"})
			open(t, h.client, askRate(80e6))
			granted := open(t, h.server, c.server)
			client, server := connect(t, h.client, listen(t, h.server, serverAddress, true), true)
			asked := make(map[netip.Addr]bool)
			deadline := time.Now().Add(30 * time.Second)
			for len(asked) < len(c.want) && time.Now().Before(deadline) {
				download(t, client, server, 256<<10)
				for more := true; more; {
					select {
					case r := <-granted.reports:
						if r.Request.Option != tcpopt.Rate || r.Verdict != tcpopt.Granted || asked[r.Remote.Addr()] {
							t.Errorf("%+v", r)
						}
						asked[r.Remote.Addr()] = true
					default:
						more = false
					}
				}
			}
			if c.want == nil {
				download(t, client, server, 4<<20)
				granted.none(t)
			}
			for _, a := range c.want {
				if !asked[netip.MustParseAddr(a)] {
					t.Errorf("the subflow from %s was not asked about: %v", a, asked)
				}
			}
		})
	}
}

// in runs ip in a namespace.
func in(t *testing.T, ns *netnstest.NS, args []string) {
	t.Helper()
	ns.Must(t, func() error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Logf("ip %v: %s", args, out)
		}
		return err
	})
}

// Of a thousand requests on a subflow the first counts.
func TestThousandRates(t *testing.T) {
	ns := netnstest.New(t)
	granted := open(t, ns, granting())
	p, l := newRawPeer(t, ns)
	p.handshake(t, l, goodSYN, nil)
	for i := range 1000 {
		p.ackWith(t, tcpopt.Append(nil, tcpopt.Request{Option: tcpopt.Rate, Value: uint32(1 + i)}))
	}
	if r := granted.await(t, tcpopt.Rate); r.Verdict != tcpopt.Capped || r.Granted != bounds.RateMin {
		t.Errorf("%+v", r)
	}
	granted.none(t)
}

// The calls for what an MPTCP subflow sends go on when the options are done, if other programs need them, and only
// then. It is acknowledgements here: most segments of data have no room for options.
func TestCallsOfOthers(t *testing.T) {
	for _, others := range []bool{false, true} {
		h := newHosts(t)
		c := Config{Ask: []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}}, SubflowsAreOthers: others}
		asking := open(t, h.client, c)
		open(t, h.server, granting())
		client, server := connect(t, h.client, listen(t, h.server, serverAddress, true), true)
		download(t, client, server, 1<<20)
		asking.await(t, tcpopt.Congestion)
		before, err := asking.Calls()
		if err != nil {
			t.Fatal(err)
		}
		download(t, client, server, 64<<20)
		after, err := asking.Calls()
		if err != nil || (after > before+mostCalls) != others {
			t.Errorf("others %v: %d calls, then %d, %v", others, before, after, err)
		}
	}
}

// A rate that is granted while the subflow has a lower limit of this host holds when the limit ends.
func TestRateAfterALimit(t *testing.T) {
	const asked, limit = 80e6, 8e6 // bits a second
	h := newHosts(t)
	watcher := cgrouptest.NewForeign(t, h.client, cgrouptest.ForeignSettings{})
	granting := granting()
	granting.SubflowsAreOthers = true
	granted := open(t, h.client, granting)
	open(t, h.server, askRate(asked))
	limits := cgrouptest.Open(t, h.client, func(cgroup string) (*sending.Setter, error) {
		return sending.Open(cgroup, granted.GrantedRates())
	})
	defer limits.Close()
	client, server := connect(t, h.client, listen(t, h.server, serverAddress, true), true)
	local := client.LocalAddr().(*net.TCPAddr).AddrPort()
	remote := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	for i, c := range []struct {
		setting sending.Setting
		want    uint32
	}{{sending.Setting{Rate: limit}, limit / 8}, {sending.Setting{}, asked / 8}, {sending.Setting{Rate: limit}, limit / 8}} {
		if err := limits.Set(local, remote, c.setting); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second segment shows what the first one set
			download(t, server, client, 1)
		}
		if i == 0 {
			if r := granted.await(t, tcpopt.Rate); r.Verdict != tcpopt.Granted || r.Granted != tcpopt.RateValue(limit) {
				t.Errorf("%+v", r)
			}
		}
		if got := watcher.Now(t).BytesPerSecond; got != c.want {
			t.Errorf("with %+v the subflow's rate is %d bytes a second, want %d", c.setting, got, c.want)
		}
	}
}
