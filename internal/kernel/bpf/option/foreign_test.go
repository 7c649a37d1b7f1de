package option

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/tcpopt"
)

// Another program, which was attached before, has its options written and read before, while and after options are
// exchanged, and with a peer that is none of ours. The options come, too.
func TestForeignProgram(t *testing.T) {
	ask := []tcpopt.Request{{Option: tcpopt.Congestion, Value: 1}, {Option: tcpopt.UserTimeout, Value: 30}}
	nobody := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for _, c := range []struct {
		name            string
		asking, granted Config
		exchange        bool
	}{
		{"exchange", Config{Ask: ask}, granting(), true},
		{"nothing in common", Config{Ask: ask[:1]}, Config{}, false},
		{"no peers", Config{Ask: ask, Peers: nobody}, Config{Accept: tcpopt.Options, Bounds: bounds, Peers: nobody}, false},
	} {
		for _, mptcp := range []bool{false, true} {
			name := c.name + "/tcp"
			if mptcp {
				name = c.name + "/mptcp"
			}
			t.Run(name, func(t *testing.T) {
				h := newHosts(t)
				theirs := map[string]*cgrouptest.Foreign{
					"client": cgrouptest.NewForeign(t, h.client, cgrouptest.ForeignSettings{}),
					"server": cgrouptest.NewForeign(t, h.server, cgrouptest.ForeignSettings{}),
				}
				firewall(t, h.server, dropNothing)
				open(t, h.client, c.asking)
				granted := open(t, h.server, c.granted)
				client, server := connect(t, h.client, listen(t, h.server, serverAddress, mptcp), mptcp)
				download(t, client, server, 4<<20)
				if c.name == "no peers" {
					wantArrived(t, h.server, "to no peer of ours", 0, 1)
				}
				if c.exchange {
					for _, r := range ask {
						if mptcp && r.Option == tcpopt.Congestion {
							continue // no room in the SYN+ACK beside MP_CAPABLE and the foreign option
						}
						if r := granted.await(t, r.Option); r.Verdict != tcpopt.Granted {
							t.Errorf("%+v", r)
						}
					}
				}
				var written, found [2]uint64
				hosts := []string{"client", "server"}
				for i, host := range hosts {
					written[i], found[i] = theirs[host].Segments(t)
				}
				download(t, client, server, 16<<20)
				for i, host := range hosts {
					w, f := theirs[host].Segments(t)
					// The server of an MPTCP connection sends data with a mapping, beside which little room is left.
					mayWriteLess, mayReadLess := mptcp && host == "server", mptcp && host == "client"
					if w < written[i]+10 && !mayWriteLess || f < found[i]+10 && !mayReadLess {
						t.Errorf("%s: its options were written in %d segments, then %d, and read in %d, then %d", host, written[i], w, found[i], f)
					}
				}
			})
		}
	}
}

// A cgroup whose program allows no other is a reason of its own.
func TestOccupiedCgroup(t *testing.T) {
	c := granting()
	c.Cgroup = cgrouptest.Occupied(t)
	netnstest.New(t).Must(t, func() error {
		e, err := Open(c)
		if err == nil {
			return e.Close()
		}
		if u, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(u.Fix, "multi") {
			t.Errorf("got %v", err)
		}
		return nil
	})
}
