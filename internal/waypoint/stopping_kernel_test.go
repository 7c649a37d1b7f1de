package waypoint

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// A member whose summary in the log is full opens no connections until the log has room again. Its open ones
// continue, and other members are not affected.
func TestFullSummaryStopsItsMember(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	alices := mustMap(t, w, peer("alice", client4), server, 8001)
	bobs := mustMap(t, w, peer("bob", client4), server, 8002)
	open := n.mustDial(t, netip.AddrPortFrom(waypoint4, alices.Port))

	// A log in which members' shares are tiny.
	limits := attribution.Limits{FileBytes: 1 << 20, Files: 2, Queue: 1 << 12, Share: 1}
	record := func(l *attribution.Log) (before *attribution.Log) {
		if err := w.ask(func() { before, w.loop.record = w.loop.record, l }); err != nil {
			t.Fatal(err)
		}
		return before
	}
	small := attribution.Open(filepath.Join(t.TempDir(), "log"), testAuthor, limits, discard)
	usual := record(small)
	for i := range 1000 {
		small.Write(attribution.Entry{Event: attribution.FlowOpened, Member: "alice", Server: netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), 443)})
	}
	eventually(t, "alice opens no connections", func() bool {
		_, err := n.dial(t, netip.AddrPortFrom(waypoint4, alices.Port))
		return errors.Is(err, unix.ECONNREFUSED)
	})
	if err := open.talk(1000); err != nil {
		t.Errorf("the connection that was open: %v", err)
	}
	n.mustDial(t, netip.AddrPortFrom(waypoint4, bobs.Port))
	record(usual)
	if err := small.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "alice opens connections again", func() bool {
		_, err := n.dial(t, netip.AddrPortFrom(waypoint4, alices.Port))
		return err == nil
	})
}
