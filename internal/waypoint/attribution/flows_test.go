package attribution

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFlowsAreFound(t *testing.T) {
	c := newTestCollective()
	path := filepath.Join(t.TempDir(), "log")
	c.story(t, path, 9) // the sessions with even numbers are alice's; every third one is closed
	from := time.Now()
	c.story(t, path, 2)
	files, err := FilesOf(path)
	if err != nil {
		t.Fatal(err)
	}
	server := netip.MustParseAddr("198.51.100.1")
	for name, test := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":             {Filter{}, 11},
		"member":          {Filter{Member: "carol"}, 5},
		"no member":       {Filter{Member: "dave"}, 0},
		"server":          {Filter{Server: netip.AddrPortFrom(server, 0)}, 11},
		"server and port": {Filter{Server: netip.AddrPortFrom(server, 443)}, 11},
		"another port":    {Filter{Server: netip.AddrPortFrom(server, 80)}, 0},
		"egress":          {Filter{Egress: netip.MustParseAddrPort("203.0.113.9:1004")}, 1},
		"before":          {Filter{Until: time.Now().Add(-time.Hour)}, 0},
		"still open":      {Filter{Since: time.Now().Add(time.Hour)}, 11 - 3 - 1},
		"later":           {Filter{Since: from}, 11 - 3},
	} {
		t.Run(name, func(t *testing.T) {
			flows, sessions, err := Flows(files, test.filter)
			if err != nil || len(flows) != test.want {
				t.Fatalf("%d flows, %v, want %d: %+v", len(flows), err, test.want, flows)
			}
			for i, f := range flows {
				s := sessions[f.Session]
				if s == nil || s.Member != f.Member || s.Serial != f.Serial || s.Waypoint != "bob" {
					t.Errorf("%+v names %+v", f, s)
				}
				if f.Closed.IsZero() != (f.BytesFromClient == nil) || f.Kind != "mapped" || f.Opened.IsZero() {
					t.Errorf("%+v", f)
				}
				if i > 0 && f.Opened.Before(flows[i-1].Opened) {
					t.Error("not in order")
				}
			}
		})
	}
}

// A flow that lasts over a restart is one flow, with its earlier session.
func TestFlowOverRestart(t *testing.T) {
	c := newTestCollective()
	path := filepath.Join(t.TempDir(), "log")
	s := c.member("alice", "0a").session("bob", time.Now())
	opened := flow(s, 1)
	opened.Client, opened.Tunnel, opened.Kind, opened.Port = netip.Addr{}, netip.MustParseAddr("10.9.0.5"), "wireguard", 0
	found := opened
	found.By, found.Event, found.Time = nil, FlowFound, time.Now().Add(time.Minute)
	closed := found
	closed.Event, closed.Opened, closed.Time = FlowClosed, found.Time, time.Now().Add(time.Hour)
	for _, e := range []Entry{opened, found, closed} {
		l := Open(path, c.member("bob", "0b").author(), DefaultLimits, discard())
		l.Write(e)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	flows, sessions, err := Flows([]File{OpenFile(path)}, Filter{})
	if err != nil || len(flows) != 1 {
		t.Fatalf("%+v, %v", flows, err)
	}
	f := flows[0]
	if f.Session != s.Session || sessions[f.Session] == nil || !f.Opened.Equal(opened.Time) || !f.Closed.Equal(closed.Time) ||
		f.Client.String() != "10.9.0.5:1" || f.Kind != "wireguard" {
		t.Errorf("%+v", f)
	}
	if r := c.verifyPath(t, path); !r.Complete() || r.FlowsByName != 2 {
		t.Errorf("%+v", r)
	}
}

func TestRecall(t *testing.T) {
	c := newTestCollective()
	path := filepath.Join(t.TempDir(), "log")
	if got, err := Recall(path); err != nil || len(got) != 0 {
		t.Fatalf("of no log: %v, %v", got, err)
	}
	first, second := c.member("alice", "0a").session("bob", time.Now()), c.member("alice", "0a").session("bob", time.Now())
	client, inside := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.9.0.5")
	for _, e := range []Entry{
		{Event: MappingGranted, Member: "alice", By: first, Client: client, Port: 443},
		{Event: AdmissionGranted, Member: "alice", By: first, Kind: "in-band", Client: client},
		{Event: AdmissionGranted, Member: "alice", By: second, Kind: "wireguard", Client: client, Tunnel: inside},
		{Event: MappingGranted, Member: "alice", By: second, Client: client, Port: 443},
		{Event: MappingGranted, Member: "alice", Client: client, Port: 80},
		{Event: FlowClosed, Member: "alice", By: first, Client: client, Port: 443}, // of a connection of before
	} {
		l := Open(path, c.member("bob", "0b").author(), DefaultLimits, discard())
		e.Time, e.Serial = time.Now(), "0a"
		l.Write(e)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Recall(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, by := range map[Grant]*Session{
		{Member: "alice", Client: client, Port: 443}:         second,
		{Member: "alice", Kind: "in-band", Client: client}:   first,
		{Member: "alice", Kind: "wireguard", Client: inside}: second,
		{Member: "alice", Client: client, Port: 80}:          nil,
		{Member: "carol", Client: client, Port: 443}:         nil,
	} {
		if s := got[want]; (s == nil) != (by == nil) || s != nil && (s.Session != by.Session || !s.SignedBy(c.keyOf("alice", "0a"), s.Signature)) {
			t.Errorf("%+v: %+v, want %+v", want, s, by)
		}
	}
}

// Whatever a file contains, reading it ends, and its text is escaped for the terminal.
func FuzzRead(f *testing.F) {
	c := newTestCollective()
	content := c.story(f, filepath.Join(f.TempDir(), "log"), 4)
	f.Add(content)
	f.Add(content[:len(content)/2])
	f.Add("{}\n\n\x00\n" + content)
	f.Add(`{"n":0,"time":"2026-01-01T00:00:00Z","event":"file-began","format":1,"collective":"\u001b[2J","waypoint":"b\nob"}` + "\n")
	f.Fuzz(func(t *testing.T, content string) {
		r := c.verifyText(t, content)
		if strings.ContainsAny(words(t, r), "\x00\x1b\x7f\r") {
			t.Errorf("raw bytes in %q", words(t, r))
		}
		var proven uint64
		for _, s := range r.Proven {
			proven += s.Last - s.First + 1
		}
		if proven > r.Lines {
			t.Errorf("%d lines proven of %d", proven, r.Lines)
		}
		if _, _, err := Flows([]File{memory("log", content)}, Filter{}); err != nil {
			t.Error(err)
		}
	})
}
