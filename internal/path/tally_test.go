package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/path"
)

// What subflows carry is counted by path. What an adopted connection carried before is another agent's.
func TestTally(t *testing.T) {
	m, now := path.New(path.Config{Policy: path.DetourPolicy{Subflows: 2}}), birth
	tell := func(ev path.Event) []path.Action { return m.Handle(ev, now) }
	local, remote := netip.AddrPortFrom(ip("me"), 5001), netip.AddrPortFrom(ip("web"), 80)
	joined := netip.AddrPortFrom(ip("me"), 50001)
	bob := netip.AddrPortFrom(ip("bob"), 80)
	tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	tell(path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.InBand, Waypoint: "bob", Remote: netip.AddrPortFrom(ip("bob"), 0)}})
	tell(path.ConnEstablished{Token: 1, Local: local, Remote: remote})
	tell(path.SubflowRequested{Token: 1, LocalID: 1, Local: joined})
	tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: joined, Remote: bob})
	sample := func(token path.Token, local, remote netip.AddrPort, received, acked uint64) {
		now = now.Add(time.Second)
		tell(path.Measured{Samples: []path.Sample{{Token: token, Local: local, Remote: remote, BytesReceived: received, BytesAcked: acked}}})
	}
	sample(1, local, remote, 1000, 10)
	sample(1, joined, bob, 500, 1)
	sample(1, local, remote, 1500, 20)
	now = now.Add(5 * time.Second)
	tell(path.ConnClosed{Token: 1})

	other := netip.AddrPortFrom(ip("me"), 5002)
	tell(path.Resync{Conns: []path.LiveConn{{Token: 2, Local: other, Remote: remote, Subflows: []path.LiveSubflow{{Local: other, Remote: remote}}}}})
	sample(2, other, remote, 1_000_000, 0)
	sample(2, other, remote, 1_000_007, 0)
	tell(path.ConnClosed{Token: 2})

	snap := m.Snapshot(now)
	want := []path.Carried{{Kind: "direct", Received: 1507, Sent: 20}, {Kind: "in-band", Waypoint: "bob", Received: 500, Sent: 1}}
	if d := cmp.Diff(want, snap.Carried); d != "" {
		t.Errorf("carried (-want +is)\n%s", d)
	}
	lived := path.Lifetimes{Counts: make([]uint64, len(path.LifetimeBounds)+1), Sum: 8 * time.Second}
	lived.Counts[2] = 1 // up to ten seconds
	if d := cmp.Diff(lived, snap.Lifetimes); d != "" {
		t.Errorf("lifetimes (-want +is)\n%s", d)
	}
}
