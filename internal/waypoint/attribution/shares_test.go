package attribution

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ofMember counts lines about a member, and those that stand for lines about it.
func ofMember(t *testing.T, path, member string) (lines, summarised int) {
	t.Helper()
	files, err := filesAt(path)
	if err != nil {
		t.Fatal(err)
	}
	err = eachLine(files, func(x *text) {
		switch {
		case x.line == nil || x.line.Member != member || x.line.Event == sessionShown:
		case x.line.Event == EntriesSummarised:
			summarised += x.line.Summarised
		default:
			lines++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, summarised
}

func filesAt(path string) (files []File, err error) {
	names, err := filepath.Glob(path + "*")
	for _, name := range names {
		files = append(files, OpenFile(name))
	}
	return files, err
}

// One member writes many times what the whole log holds. What another one caused stays, line by line; of the first one
// the log says how much is missing, and where it went; and the chain holds.
func TestNobodyPushesOutAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollective()
		path := filepath.Join(t.TempDir(), "log")
		limits := Limits{FileBytes: 64 << 10, Files: 4, Queue: 1 << 15, Share: 4 * (64 << 10) / 10}
		l := Open(path, c.member("bob", "0b").author(), limits, discard())
		alice, mallory := c.member("alice", "0a").session("bob", time.Now()), c.member("mallory", "0d").session("bob", time.Now())
		const hers, his = 20, 5000
		for i := range hers {
			l.Write(flow(alice, uint16(1000+i)))
		}
		for i := range his {
			e := flow(mallory, uint16(1+i))
			e.Server = netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 9, byte(i % 100), 1}), 443)
			l.Write(e)
		}
		time.Sleep(summariseEvery + signEvery)
		synctest.Wait()
		if _, summarised := ofMember(t, path, "mallory"); summarised == 0 {
			t.Error("no summary is written while the agent runs")
		}
		for i := range his {
			l.Write(flow(mallory, uint16(1+i)))
		}
		for i := range hers {
			l.Write(flow(alice, uint16(2000+i)))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}

		if lines, summarised := ofMember(t, path, "alice"); lines != 2*hers || summarised != 0 {
			t.Errorf("alice: %d lines of %d, %d summarised", lines, 2*hers, summarised)
		}
		lines, summarised := ofMember(t, path, "mallory")
		if lines+summarised != 2*his || lines == 0 {
			t.Errorf("mallory: %d lines and %d summarised, want %d in all", lines, summarised, 2*his)
		}
		files, err := filesAt(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == limits.Files {
			t.Errorf("a file is about to be removed")
		}
		r := c.verify(t, files...)
		if !r.Complete() {
			t.Errorf("not proven: %+v", r.Faults)
		}
		if got := words(t, r); !strings.Contains(got, "lines about mallory, from") || strings.Contains(got, "about alice") {
			t.Errorf("the report does not say what is missing:\n%s", got)
		}
		found, err := Summaries(files, Filter{Member: "mallory"})
		if err != nil || len(found) == 0 || found[0].Summarised == 0 || len(found[0].Servers) != maxSummarised {
			t.Errorf("summaries %+v, %v", found, err)
		}
		for what, other := range map[string]Filter{"of another": {Member: "alice"}, "of another time": {Until: time.Now().Add(-time.Hour)}} {
			if found, err := Summaries(files, other); err != nil || len(found) > 0 {
				t.Errorf("summaries %s: %+v, %v", what, found, err)
			}
		}
		if l.Health().Lost != 0 {
			t.Errorf("%d entries were lost", l.Health().Lost)
		}
	})
}

// A share that was used up grows back, and no further than it was.
func TestShareGrowsBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := newShares(1000)
	e := Entry{Event: FlowOpened, Member: "alice", Server: netip.MustParseAddrPort("198.51.100.1:443")}
	writes := func(what string, want bool) {
		t.Helper()
		if got := len(s.sift([]Entry{e}, now)) == 1; got != want {
			t.Errorf("%s: written %v", what, got)
		}
	}
	writes("at first", true)
	s.charge(map[string]int{"alice": 1500, "bob": 10}, now)
	writes("beyond the share", false)
	now = now.Add(shareRefills / 4)
	writes("after a quarter, with a half owed", false)
	now = now.Add(shareRefills / 2)
	writes("after three quarters", true)
	now = now.Add(100 * shareRefills)
	writes("after long", true)
	s.charge(map[string]int{"alice": 1000}, now)
	writes("the share has not grown beyond what it was", false)
	now = now.Add(-time.Hour) // the clock is set back
	writes("time that goes back gives nothing", false)

	if got := len(s.sift([]Entry{{Event: MemberExpelled, Member: "alice"}, {Event: FlowOpened, Member: "bob"}}, now)); got != 2 {
		t.Errorf("%d of two entries that are within bounds", got)
	}
	due := s.due(now, true)
	if len(due) != 1 || due[0].Member != "alice" || due[0].Summarised != 4 || len(due[0].Servers) != 1 || due[0].Servers[0].Lines != 4 {
		t.Errorf("summary %+v", due)
	}
	if s.written(due); len(s.due(now, true)) != 0 {
		t.Error("what is written is due again")
	}
}

// A summary has room for the servers of a scan, but not for as many as a member likes.
func TestSummaryIsBounded(t *testing.T) {
	now := time.Now()
	s := newShares(1)
	s.charge(map[string]int{"alice": 2}, now)
	for i := range 1000 {
		s.sift([]Entry{{Event: FlowOpened, Member: "alice", Server: netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), 443)}}, now)
	}
	due := s.due(now, true)
	if len(due) != 1 || due[0].Summarised != 1000 || len(due[0].Servers) != maxSummarised {
		t.Errorf("%+v", due)
	}
	l := line{Entry: due[0]}
	if n := len(l.encode(nil)); n > 4<<10 {
		t.Errorf("a summary of %d bytes", n)
	}
}
