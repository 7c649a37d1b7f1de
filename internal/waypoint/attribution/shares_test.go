package attribution

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ofMember counts the lines about a member, and the lines that summaries replace.
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

// One member writes many times the size of the whole log. Another member's entries stay, line by line. Of the
// first member's the log records how many are missing, and their servers; and the chain stays valid.
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
		if err != nil || len(found) == 0 || found[0].Summarised == 0 || len(found[0].Servers) != 100 {
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

// A share that was used up grows back to its earlier size, and no further.
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

// However many decoys a member calls, a summary names every server, and the member is reported before it takes more
// than the share that grows back.
func TestSummaryHidesNothing(t *testing.T) {
	start := time.Now()
	s := newShares(DefaultLimits.Share)
	now := start
	s.charge(map[string]int{"alice": int(DefaultLimits.Share)}, now)
	server := func(i int) netip.AddrPort {
		a := netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:0").As16()
		a[14], a[15] = byte(i>>8), byte(i)
		return netip.AddrPortFrom(netip.AddrFrom16(a), 443)
	}
	hidden := netip.MustParseAddrPort("203.0.113.33:443")
	sift := func(event Event, at netip.AddrPort, times int) {
		for range times {
			s.sift([]Entry{{Event: event, Member: "alice", Server: at}}, now)
		}
	}
	for i := range 100 {
		sift(MappingGranted, server(1000+i), 1) // no data was sent there
	}
	opened := 0
	for ; len(s.full()) == 0; opened++ {
		sift(FlowOpened, server(opened), 3) // decoys
		if opened > 1<<16 {
			t.Fatal("the member may go on without end")
		}
	}
	if opened != maxSummarised || !slices.Equal(s.full(), []string{"alice"}) {
		t.Errorf("%v after %d servers", s.full(), opened)
	}
	sift(FlowOpened, hidden, 1) // on its way when the member was stopped

	due := s.due(now, true)
	var text []byte
	servers, lines := 0, 0
	named := false
	for _, e := range due {
		l := line{Entry: e}
		one := l.encode(nil)
		if len(one) > maxLine/2 {
			t.Errorf("a line of %d bytes", len(one))
		}
		text = append(text, one...)
		servers += len(e.Servers)
		lines += e.Summarised
		named = named || slices.Contains(e.Servers, ServerLines{hidden.Addr(), 1})
	}
	if servers != maxSummarised+1 || lines != 100+3*maxSummarised+1 || !named {
		t.Errorf("%d servers and %d lines; the one among decoys is named: %v", servers, lines, named)
	}
	refill := float64(DefaultLimits.Share) * summariseEvery.Seconds() / shareRefills.Seconds()
	t.Logf("a full summary has %d bytes, of %.0f that grow back", len(text), refill)
	if float64(len(text)) > refill {
		t.Errorf("a full summary has %d bytes, and %.0f grow back until the next", len(text), refill)
	}
	if s.written(due); len(s.full()) != 0 {
		t.Error("what is written is still full")
	}
}
