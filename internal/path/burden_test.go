package path_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// TestBurden plays downloads that were recorded in the lab, a sample every tenth of a second. In some of them the detour
// held up the connection for more than it was worth, and it must be left in time. In the others it added to the direct
// path, and must carry on.
func TestBurden(t *testing.T) {
	files, err := filepath.Glob("testdata/burden/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			r := readRecording(t, file)
			left, why := r.play(t)
			if left > 0 && (why.Reason.Cause != path.CauseBurden || why.Reason.Numbers.Missed+why.Reason.Numbers.Held <= why.Reason.Numbers.Carried) {
				t.Errorf("%+v: %s", why, why.Why())
			}
			switch {
			case r.leavesBy == 0 && left != 0:
				t.Errorf("the detour was left after %v", left)
			case r.leavesBy > 0 && (left == 0 || left > r.leavesBy):
				t.Errorf("the detour was left after %v (0: never), want at most %v", left, r.leavesBy)
			}
		})
	}
}

// recording is a download over the direct path and one detour.
type recording struct {
	leavesBy time.Duration // when the detour must have been left at the latest; 0: it must not be
	trips    [2]int        // shortest round trips in milliseconds, of the direct path and of the detour
	rows     []recorded
}

// recorded is one sample of both subflows. UpTo is the position up to which the connection's data had arrived.
type recorded struct {
	ms, upTo int
	subflows [2]struct{ received, dataEnd, gap, segments, late, dry, trip int }
}

func readRecording(t *testing.T, file string) (r recording) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "#":
		case "leaves":
			if r.leavesBy, err = time.ParseDuration(rest); err != nil {
				t.Fatal(err)
			}
		case "trips":
			if _, err := fmt.Sscan(rest, &r.trips[0], &r.trips[1]); err != nil {
				t.Fatal(err)
			}
		default:
			var x recorded
			d, w := &x.subflows[0], &x.subflows[1]
			if _, err := fmt.Sscan(line, &x.ms, &x.upTo,
				&d.received, &d.dataEnd, &d.gap, &d.segments, &d.late, &d.dry, &d.trip,
				&w.received, &w.dataEnd, &w.gap, &w.segments, &w.late, &w.dry, &w.trip); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			r.rows = append(r.rows, x)
		}
	}
	return r
}

// play gives a Manager the recording. It returns when the Manager left the detour, or 0, and why.
func (r recording) play(t *testing.T) (time.Duration, path.Departure) {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true})
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, start)
	bob := netip.AddrPortFrom(ip("bob"), 0)
	m.Handle(path.DetourOffered{Detour: path.Detour{ID: "bob", Kind: path.InBand, Waypoint: "bob", Remote: bob}}, start)
	local, web := netip.AddrPortFrom(ip("me"), 20000), netip.AddrPortFrom(ip("web"), 80)
	detour := netip.AddrPortFrom(ip("me"), 20001)
	var remote netip.AddrPort
	for _, a := range m.Handle(path.ConnEstablished{Token: 1, Local: local, Remote: web}, start) {
		if c, ok := a.(path.CreateSubflow); ok {
			remote = c.Remote
			m.Handle(path.SubflowRequested{Token: 1, LocalID: c.LocalID, Local: detour}, start)
			m.Handle(path.SubflowEstablished{Token: 1, LocalID: c.LocalID, Local: detour, Remote: remote}, start.Add(time.Duration(r.trips[1])*time.Millisecond))
		}
	}
	if !remote.IsValid() {
		t.Fatal("the connection requested no detour")
	}
	for _, x := range r.rows {
		now := start.Add(time.Duration(x.ms) * time.Millisecond)
		ev := path.Measured{Progress: []path.Progress{{Token: 1, Received: uint64(x.upTo)}}}
		for i, s := range x.subflows {
			trip := time.Duration(r.trips[i]) * time.Millisecond
			sample := path.Sample{
				Token: 1, Local: local, Remote: web, BytesReceived: uint64(s.received), MinRTT: trip, RTT: trip,
				ReceiverRTT: time.Duration(s.trip) * time.Millisecond, Timestamps: true, SegsIn: uint64(s.segments), DataSegsIn: uint64(s.segments),
				OutOfOrder: uint64(s.late), Gap: s.gap > 0, DataEnd: uint64(s.dataEnd),
				LastData: time.Duration(s.dry) * time.Millisecond, LastAnswer: time.Duration(s.dry) * time.Millisecond, LastSent: now.Sub(start),
			}
			if i == 1 {
				sample.Local, sample.Remote = detour, remote
			}
			ev.Samples = append(ev.Samples, sample)
		}
		for _, a := range m.Handle(ev, now) {
			switch a := a.(type) {
			case path.SetBackup:
				if a.Backup && a.Local == detour {
					return now.Sub(start), left(m, 1, "bob", now)
				}
			case path.DestroySubflow:
				if a.Local == detour {
					return now.Sub(start), left(m, 1, "bob", now)
				}
			}
		}
	}
	return 0, path.Departure{}
}
