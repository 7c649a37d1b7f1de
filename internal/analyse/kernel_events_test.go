package analyse_test

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// secondLink has the client's kernel use its second link for joins.
func (w *twoLinks) secondLink(t *testing.T) {
	t.Helper()
	for _, ns := range []*netnstest.NS{w.client, w.server} {
		ns.Output(t, "ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2")
	}
	w.client.Output(t, "ip", "route", "add", "10.0.1.0/24", "via", "10.0.2.2", "table", "100")
	w.client.Output(t, "ip", "rule", "add", "from", "10.0.2.1", "table", "100")
}

// join has the client's kernel join the connection over the second link, and waits until it has.
func (w *twoLinks) join(t *testing.T, flags ...string) {
	t.Helper()
	w.client.Output(t, "ip", append([]string{"mptcp", "endpoint", "add", "10.0.2.1", "subflow"}, flags...)...)
	w.joined(t)
}

func (w *twoLinks) joined(t *testing.T) {
	t.Helper()
	eventually(t, "the second subflow", func() bool {
		all := w.records(t)
		return len(all) == 1 && len(all[0].Subflows) == 2 && all[0].Subflows[1].State == "established"
	})
}

// rule has the client treat packets of its first link by a rule of nftables.
func (w *twoLinks) rule(t *testing.T, hook, rule string) {
	t.Helper()
	w.client.Output(t, "nft", "add table inet t; add chain inet t "+hook+" { type filter hook "+hook+" priority 0; }; add rule inet t "+hook+" "+rule)
}

// breaks has the first link deliver nothing any more, in both directions.
func (w *twoLinks) breaks(t *testing.T) {
	t.Helper()
	w.rule(t, "input", "iifname link1 drop")
	w.rule(t, "output", "oifname link1 drop")
}

// talks exchanges data for a while.
func talks(t *testing.T, client, server net.Conn, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		sends(t, client, server, 100)
		sends(t, server, client, 1000)
	}
}

// closes ends a connection from both sides.
func closes(t *testing.T, client, server net.Conn) {
	t.Helper()
	_ = client.Close()
	_ = server.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, server); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
}

// found lists the events that the analysis reports of a connection.
func found(r *track.Record) (events []string) {
	events = []string{"end " + r.End}
	if r.Fallback != nil {
		events = append(events, "fallback "+r.Fallback.Cause)
	}
	for after := range r.ReinjectedAfter {
		events = append(events, "reinjection after "+after)
	}
	for _, h := range r.Handovers {
		events = append(events, "handover "+h.Kind+", "+h.Why)
	}
	for i, s := range r.Subflows {
		if s.Unused {
			events = append(events, "unused subflow "+string(rune('0'+i)))
		}
	}
	for name := range r.Anomalies {
		events = append(events, "anomaly "+name)
	}
	if r.WindowStalls > 0 {
		events = append(events, "window stall")
	}
	slices.Sort(events)
	return events
}

// Events that are produced on the kernel on purpose are found, and no others.
func TestKernelsEvents(t *testing.T) {
	const lost = 5000 // fits into the first window, so that all is on the link, and in the capture
	for name, c := range map[string]struct {
		play func(t *testing.T, w *twoLinks, client, server net.Conn)
		want []string
		// Bytes that are reinjected, and the kernel's counters of the client and the server.
		reinjected         uint64
		ofClient, ofServer map[string]int
	}{
		"one subflow": {play: func(t *testing.T, _ *twoLinks, client, server net.Conn) {
			talks(t, client, server, 300*time.Millisecond)
			closes(t, client, server)
		}, want: []string{"end data-fin"}, ofServer: map[string]int{"MPTcpExtMPJoinAckRx": 0}},
		"a backup that is not used": {play: func(t *testing.T, w *twoLinks, client, server net.Conn) {
			w.join(t, "backup")
			talks(t, client, server, 300*time.Millisecond)
			closes(t, client, server)
		}, want: []string{"end data-fin", "unused subflow 1"}, ofServer: map[string]int{"MPTcpExtMPJoinAckRx": 1}},
		"a fast close": {play: func(t *testing.T, _ *twoLinks, client, server net.Conn) {
			talks(t, client, server, 100*time.Millisecond)
			_ = client.(*net.TCPConn).SetLinger(0)
			_ = client.Close()
		}, want: []string{"end fastclose"}, ofClient: map[string]int{"MPTcpExtMPFastcloseTx": 1}},
		"a link that dies beside a backup": {play: func(t *testing.T, w *twoLinks, client, server net.Conn) {
			w.join(t, "backup")
			w.breaks(t)
			sends(t, server, client, lost)
			talks(t, client, server, 1500*time.Millisecond)
			closes(t, client, server)
		}, want: []string{"end data-fin", "handover make-before-break, silent", "reinjection after timeout"}, reinjected: lost},
		"a link that dies before another is there": {play: func(t *testing.T, w *twoLinks, client, server net.Conn) {
			w.breaks(t)
			if _, err := server.Write(make([]byte, lost)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the data is in the capture", func() bool {
				all := w.records(t)
				return len(all) == 1 && all[0].FromServer >= 1000+lost
			})
			w.client.Output(t, "ip", "mptcp", "endpoint", "add", "10.0.2.1", "subflow")
			w.joined(t)
			_ = client.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.ReadFull(client, make([]byte, lost)); err != nil {
				t.Fatal(err)
			}
			talks(t, client, server, 1500*time.Millisecond)
			closes(t, client, server)
		}, want: []string{"end data-fin", "handover break-before-make, silent", "reinjection after timeout"}, reinjected: lost},
		"an address that is removed": {play: func(t *testing.T, w *twoLinks, client, server net.Conn) {
			w.join(t, "backup")
			talks(t, client, server, 100*time.Millisecond)
			w.client.Output(t, "ip", "mptcp", "endpoint", "delete", "id", "0", "10.0.1.1")
			eventually(t, "the first subflow has ended", func() bool {
				all := w.records(t)
				return len(all) == 1 && all[0].Subflows[0].State == "closed"
			})
			talks(t, client, server, 300*time.Millisecond)
			closes(t, client, server)
		}, want: []string{"end data-fin", "handover make-before-break, removed"}, ofServer: map[string]int{"MPTcpExtRmAddr": 1}},
		"a subflow that is reset": {play: func(t *testing.T, w *twoLinks, client, server net.Conn) {
			w.join(t, "backup")
			w.rule(t, "input", "iifname link1 meta l4proto tcp reject with tcp reset")
			sends(t, server, client, lost)
			sends(t, server, client, 1000) // the client does not know of the reset, and would send on the first subflow
			closes(t, client, server)
		}, want: []string{"end data-fin", "handover make-before-break, reset", "reinjection after subflow-ended"}, reinjected: lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTwoLinks(t)
			w.secondLink(t)
			client, server := w.connect(t, true)
			sends(t, server, client, 1000)
			sends(t, client, server, 100)
			c.play(t, w, client, server)
			slices.Sort(c.want)
			var r *track.Record
			eventually(t, "the connection's end is in the capture", func() bool {
				all := w.records(t)
				if len(all) != 1 {
					return false
				}
				r = all[0]
				return slices.Equal(found(r), c.want) || r.End != track.EndCapture
			})
			if got := found(r); !slices.Equal(got, c.want) || r.Reinjected != c.reinjected {
				t.Errorf("found %q and %d bytes reinjected\n want %q and %d\n%+v", got, r.Reinjected, c.want, c.reinjected, r)
			}
			for ns, counters := range map[*netnstest.NS]map[string]int{w.client: c.ofClient, w.server: c.ofServer} {
				for counter, want := range counters {
					if kernel := counted(t, ns, counter); kernel != want {
						t.Errorf("the kernel counts %d for %s, not %d", kernel, counter, want)
					}
				}
			}
		})
	}
}
