package top

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/api"
)

var update = flag.Bool("update", false, "write the golden files")

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// status returns the state of an agent with the given number of connections, some seconds after the start. Rates are
// computed from the two numbers, so each call returns the same.
func status(connections, second int) api.Status {
	at := netip.MustParseAddrPort
	u := &api.Using{Connections: []api.Connection{}, Waypoints: []api.Waypoint{
		{Name: "bob", Addr: at("192.0.2.7:45672"), State: api.WaypointUp, Since: start.Add(-2 * time.Hour), RTT: 12.3, Loss: 0.004, LossPackets: 60, Mappings: 3, Subflows: connections,
			Kinds: []api.WaypointKind{{Kind: "in-band", State: api.KindReady}, {Kind: "mapped", State: api.KindReady}}},
		{Name: "carol", Addr: at("[2001:db8::8]:45672"), State: api.WaypointUp, Since: start.Add(-time.Minute), RTT: 140, Loss: 0.031, LossPackets: 60, Subflows: connections,
			Kinds: []api.WaypointKind{{Kind: "wireguard", State: api.KindReady}}},
		{Name: "dave", Addr: at("192.0.2.9:45672"), State: api.WaypointDown, Since: start.Add(-40 * time.Second), Why: "no answer: is its agent running?"},
	}}
	for i := range connections {
		u.Connections = append(u.Connections, connection(i, second))
	}
	return api.Status{
		Schema: api.StatusSchema, Member: "alice", Version: "v1.0.0", Roles: []string{"client", "waypoint"}, Since: start.Add(-3 * time.Hour),
		Problems: []string{"/etc/dcol/alice.crt ends in 3 days: ask for a new one"}, Client: u,
	}
}

// serving returns the state of a waypoint that two members use.
func serving() *api.Serving {
	return &api.Serving{
		Sessions: 3, Mappings: 12, Granted: 60, Refused: map[string]int{"port-denied": 4}, Given: api.Given{Open: true},
		Members: []api.Served{
			{Member: "erin", Sessions: 1, Mappings: 12, Flows: 31, Bytes: 1.83e9}, {Member: "frank-at-home", Sessions: 2, Tunnels: 1, Bytes: 0},
			{Member: "gone", Bytes: 1000}, {Member: "mallory", Expelled: true, Bytes: 1000},
		},
	}
}

func connection(i, second int) api.Connection {
	server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(443+i/256))
	if i%3 == 1 {
		server = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:5::%x", i)), 22)
	}
	since := start.Add(-time.Duration(90+i) * time.Second)
	subflow := func(kind, waypoint, why string, bps float64) api.Subflow {
		wave := 1 + float64((second*7+i*3)%5)/5
		return api.Subflow{
			Kind: kind, Waypoint: waypoint, State: api.SubflowUp, Why: why, Since: since, RTT: 30.25 + float64(i%9), MinRTT: 20,
			Local: netip.AddrPortFrom(netip.MustParseAddr("192.168.1.10"), uint16(20000+3*i+len(waypoint))), Remote: server,
			ReceiveRate: bps * wave, SendRate: bps * wave / 80, BytesReceived: uint64(105e6 + bps*float64(second)/8), BytesSent: 1.2e6, Segments: uint64(1000 + 100*second), Retransmitted: uint64(i%5) * uint64(2+second), Queued: uint64(bps / 80),
		}
	}
	share := 1 / float64(1+i%40)
	c := api.Connection{Token: fmt.Sprintf("%08x", i), Local: netip.MustParseAddrPort("192.168.1.10:40000"), Remote: server, Since: since}
	if i%10 == 2 {
		c.Note = "no detour to this server is at hand"
		c.Subflows = []api.Subflow{subflow("direct", "", "", 0)}
		return c
	}
	c.Subflows = []api.Subflow{
		subflow("direct", "", "", 9.4e6*share), subflow("in-band", "bob", "in-band comes first of what bob offers", 6.2e6*share),
		subflow("wireguard", "carol", "a spare: others come first", 0),
	}
	c.Subflows[2].State = api.SubflowBackup
	return c
}

// shown returns a model that has received the given number of states, a second apart, and the time of the last state.
func shown(connections, states int) (*Model, time.Time) {
	var m Model
	now := start
	for i := range states {
		now = start.Add(time.Duration(i) * time.Second)
		m.Handle(Answered{status(connections, i), time.Second}, now)
	}
	return &m, now
}

func press(m *Model, now time.Time, keys ...Key) (requests []Request) {
	for _, k := range keys {
		requests = append(requests, m.Handle(k, now)...)
	}
	return requests
}

func text(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	return b.String()
}

// compare compares a picture with a golden file.
func compare(t *testing.T, name, now string) {
	t.Helper()
	file := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(golden), now); d != "" {
		t.Errorf("%s differs (-golden +now); -update writes it anew\n%s", file, d)
	}
}

func TestView(t *testing.T) {
	for _, size := range []struct{ columns, rows int }{{40, 30}, {80, 24}, {160, 45}} {
		for _, connections := range []int{0, 3, 1000} {
			m, now := shown(connections, 12)
			compare(t, fmt.Sprintf("view-%d-%d", size.columns, connections), text(View(m, now, size.columns, size.rows, Look{})))
		}
	}
}

// Waypoints are hidden only if the connections need the rows.
func TestManyWaypoints(t *testing.T) {
	for _, test := range []struct{ waypoints, connections, hidden int }{{12, 1, 0}, {12, 0, 0}, {12, 6, 2}, {40, 1, 16}, {40, 1000, 30}} {
		s := status(test.connections, 1)
		s.Problems = nil
		for i := len(s.Client.Waypoints); i < test.waypoints; i++ {
			w := s.Client.Waypoints[0]
			w.Name = fmt.Sprintf("w%d", i)
			s.Client.Waypoints = append(s.Client.Waypoints, w)
		}
		var m Model
		m.Handle(Answered{s, time.Second}, start)
		picture := text(View(&m, start, 100, 40, Look{}))
		hidden := 0
		if _, after, ok := strings.Cut(picture, "WAYPOINT +"); ok {
			if _, err := fmt.Sscan(after, &hidden); err != nil {
				t.Error(err)
			}
		}
		if hidden != test.hidden {
			t.Errorf("%d waypoints, %d connections: %d waypoints are hidden\n%s", test.waypoints, test.connections, hidden, picture)
		}
	}
}

func TestViewOfStates(t *testing.T) {
	others := api.Steering{Use: []api.Steered{{Name: "bob"}}, Avoid: []api.Steered{{Name: "carol"}}}
	for name, test := range map[string]func(*Model, time.Time) time.Time{
		"none-yet": func(m *Model, now time.Time) time.Time { *m = Model{}; return now },
		"silent": func(m *Model, now time.Time) time.Time {
			m.Handle(Failed{errors.New("no agent is running at /run/dcol/agent.sock")}, now)
			return now.Add(90 * time.Second)
		},
		"late":     func(m *Model, now time.Time) time.Time { return now.Add(20 * time.Second) },
		"frozen":   func(m *Model, now time.Time) time.Time { press(m, now, " "); return now.Add(time.Hour) },
		"subflow":  func(m *Model, now time.Time) time.Time { press(m, now, "down", "down", "down"); return now },
		"folded":   func(m *Model, now time.Time) time.Time { press(m, now, "e", "down", "right"); return now },
		"filter":   func(m *Model, now time.Time) time.Time { press(m, now, "/", "2", "0", "0", "1"); return now },
		"no-match": func(m *Model, now time.Time) time.Time { press(m, now, "/", "x", "x", "enter"); return now },
		"waypoint": func(m *Model, now time.Time) time.Time { press(m, now, "tab", "down", "down"); return now },
		"question": func(m *Model, now time.Time) time.Time { press(m, now, "tab", "u"); return now },
		"help":     func(m *Model, now time.Time) time.Time { press(m, now, "?"); return now },
		"problems": func(m *Model, now time.Time) time.Time { press(m, now, "p"); return now },
		"steered": func(m *Model, now time.Time) time.Time {
			s := status(3, 12)
			s.Client.Steering = others
			m.Handle(Steered{Steering: others}, now)
			m.Handle(Answered{s, time.Second}, now)
			return now
		},
		"why": func(m *Model, now time.Time) time.Time {
			press(m, now, "down", "w")
			m.Handle(Explained{Server: netip.MustParseAddrPort("203.0.113.9:443"), Err: errors.New("an old question")}, now)
			m.Handle(Explained{Server: m.panel.waits, Why: api.Why{
				Server: netip.MustParseAddrPort("203.0.113.0:443"), Note: "203.0.113.0 is in client.exclude (203.0.113.0/24)",
			}}, now)
			return now
		},
		"seldom": func(m *Model, now time.Time) time.Time {
			m.Handle(Answered{status(3, 12), 3 * time.Second}, now)
			return now
		},
		"waypoint-closed": func(m *Model, now time.Time) time.Time {
			s := status(3, 12)
			s.Serving = serving()
			s.Serving.Given = api.Given{Closed: api.SwitchedOff}
			m.Handle(Answered{s, time.Second}, now)
			return now
		},
		"neither": func(m *Model, now time.Time) time.Time {
			s := status(3, 12)
			s.Client, s.Roles = nil, []string{"coordinator"}
			m.Handle(Answered{s, time.Second}, now)
			return now
		},
		"waypoint-only": func(m *Model, now time.Time) time.Time {
			s := status(3, 12)
			s.Client, s.Roles = nil, []string{"waypoint"}
			for i := range 12 { // frank begins later, and carries more
				s.Serving = serving()
				s.Serving.Members[0].Bytes += uint64(i%3) * 100_000
				s.Serving.Members[1].Bytes += uint64(max(i-4, 0)*i) * 50_000
				now = now.Add(time.Second)
				m.Handle(Answered{s, time.Second}, now)
			}
			return now
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := shown(3, 12)
			now = test(m, now)
			compare(t, "state-"+name, text(View(m, now, 80, 24, Look{})))
		})
	}
	m, now := shown(3, 12)
	ascii := text(View(m, now, 80, 24, Look{ASCII: true}))
	compare(t, "ascii", ascii)
	for _, r := range ascii {
		if r > '~' {
			t.Errorf("%q is not ASCII", r)
		}
	}
}

// The picture fits any size that the terminal reports, and has no control characters whatever the agent sends.
func TestViewFits(t *testing.T) {
	foreign := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\x1b[2J\x1b]0;owned\a", "\r\n\n", "日本語の名前", "e\u0301\u202e", "👩‍👩‍👧‍👦"}))
	size := rapid.OneOf(rapid.IntRange(-10, 200), rapid.SampledFrom([]int{-1 << 31, 0, 1, 10_000, 1<<31 - 1}))
	keys := rapid.SampledFrom([]Key{
		"up", "down", "pgup", "pgdn", "home", "end", "tab", "enter", "left", "right", "e", "s", "S", "/", "x", "esc", "backspace", " ", "w", "u", "a", "r", "p", "?", "y", "\x1b", "é",
	})
	rapid.Check(t, func(t *rapid.T) {
		var m Model
		now := start
		for range rapid.IntRange(0, 4).Draw(t, "states") {
			s := status(rapid.IntRange(0, 12).Draw(t, "connections"), rapid.IntRange(0, 9).Draw(t, "second"))
			s.Member = foreign.Draw(t, "member")
			s.Problems = rapid.SliceOfN(foreign, 0, 5).Draw(t, "problems")
			s.Client.Waypoints[0].Name, s.Client.Waypoints[1].Why = foreign.Draw(t, "waypoint"), foreign.Draw(t, "why")
			for i := range s.Client.Connections {
				s.Client.Connections[i].Note = foreign.Draw(t, "note")
			}
			m.Handle(Answered{s, time.Second}, now)
			if rapid.Bool().Draw(t, "silent") {
				m.Handle(Failed{errors.New(foreign.Draw(t, "error"))}, now)
			}
			press(&m, now, rapid.SliceOfN(keys, 0, 8).Draw(t, "keys")...)
			if m.panel != nil {
				m.Handle(Explained{Server: m.panel.waits, Err: errors.New(foreign.Draw(t, "explained"))}, now)
			}
			m.Handle(Steered{Err: errors.New(foreign.Draw(t, "steered"))}, now)
			now = now.Add(time.Second)
		}
		columns, rows := size.Draw(t, "columns"), size.Draw(t, "rows")
		lines := View(&m, now, columns, rows, Look{})
		columns, rows = Bound(columns, rows)
		if len(lines) != rows {
			t.Fatalf("%d lines for %d rows", len(lines), rows)
		}
		for _, l := range lines {
			if w := l.width(); w > columns {
				t.Fatalf("a line takes %d of %d columns: %q", w, columns, l.String())
			}
			if s := l.String(); clean(s) != s {
				t.Fatalf("control characters: %q", s)
			}
		}
	})
}

// Keys that do not fit are left out whole, whatever the width.
func TestKeysAreWhole(t *testing.T) {
	var m Model
	m.Handle(Answered{status(3, 1), time.Second}, start)
	all := text([]Line{View(&m, start, 300, 24, Look{})[23]})
	for columns := leastColumns; columns < 120; columns++ {
		line := strings.TrimSuffix(text([]Line{View(&m, start, columns, 24, Look{})[23]}), "\n")
		if rest, ok := strings.CutPrefix(all, line); !ok || !strings.HasPrefix(line, "? help") || rest[0] != ' ' && rest[0] != '\n' {
			t.Errorf("at %d columns, the keys are %q", columns, line)
		}
	}
}

func TestBound(t *testing.T) {
	for _, test := range []struct{ columns, rows, wantColumns, wantRows int }{
		{0, 0, 80, 24}, {-5, -1, 80, 24}, {10_000, 10_000, mostColumns, mostRows}, {132, 43, 132, 43}, {40, 0, 40, 24},
	} {
		if c, r := Bound(test.columns, test.rows); c != test.wantColumns || r != test.wantRows {
			t.Errorf("%d × %d: %d × %d, want %d × %d", test.columns, test.rows, c, r, test.wantColumns, test.wantRows)
		}
	}
}

func TestEvents(t *testing.T) {
	old, now := status(12, 0), status(12, 0)
	c := func(i int) *api.Connection { return &now.Client.Connections[i] }
	c(0).Subflows = c(0).Subflows[:2]                          // the last one has ended
	c(1).Subflows[2].State = api.SubflowUp                     // no longer a backup
	c(3).Since = c(3).Since.Add(time.Minute)                   // another connection has the token now
	now.Client.Connections = now.Client.Connections[:11]       // the last one has ended
	now.Client.Waypoints[2].State = api.WaypointUp             // dave
	now.Client.Waypoints[0].Why = "this changes no state"      // and is no event
	now.Client.Waypoints = now.Client.Waypoints[:3]            //
	now.Problems = []string{"the disk is full: make \x1broom"} // and the other is solved
	now.Client.Steering.Avoid = []api.Steered{{Name: "bob"}}
	var got []string
	for _, e := range Differences(&old, &now, start) {
		got = append(got, e.Text)
	}
	want := []string{
		"PROBLEM: the disk is full: make  room",
		"solved: /etc/dcol/alice.crt ends in 3 days: ask for a new one",
		"waypoint dave: up: no answer: is its agent running?",
		"waypoints: never taken: bob",
		"203.0.113.0:443: via carol (wireguard) has ended",
		"[2001:db8:5::1]:22: via carol (wireguard) is up",
		"203.0.113.3:443: opened",
		"203.0.113.3:443: ended after 1 min, 315.0 MB received, 3.6 MB sent",
		"203.0.113.11:443: ended after 1 min, 315.0 MB received, 3.6 MB sent",
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if again := Differences(&now, &now, start); len(again) > 0 {
		t.Errorf("no change gives events: %v", again)
	}
}

// A direct path that is lost though its subflows stay is an event, and so is its return.
func TestEventsOfTheDirectPath(t *testing.T) {
	texts := func(old, now *api.Status) (list []string) {
		for _, e := range Differences(old, now, start) {
			list = append(list, e.Text)
		}
		return list
	}
	well, lost := status(2, 0), status(2, 0)
	well.Client.Direct = &api.DirectPath{State: api.DirectUp}
	lost.Client.Direct = &api.DirectPath{State: api.DirectLost, Since: start, Connections: 1}
	lost.Client.Connections[0].Subflows[0].State = api.SubflowSilent
	want := []string{"the direct path is lost: nothing has come over it since " + start.Local().Format(time.TimeOnly), "203.0.113.0:443: the direct path is silent"}
	if d := cmp.Diff(want, texts(&well, &lost)); d != "" {
		t.Errorf("lost (-want +got)\n%s", d)
	}
	want = []string{"the direct path works again", "203.0.113.0:443: the direct path is up"}
	if d := cmp.Diff(want, texts(&lost, &well)); d != "" {
		t.Errorf("back (-want +got)\n%s", d)
	}
}

func TestManyEventsAreOne(t *testing.T) {
	m, now := shown(1000, 1)
	m.Handle(Answered{status(0, 1), time.Second}, now)
	if n := len(m.feed.events); n != 1 || m.feed.events[0].Text != "1000 connections: ended" {
		t.Errorf("%d events: %v", n, m.feed.events)
	}
	for i := range 3 * mostEvents {
		m.Handle(Answered{status(i%2, 1), time.Second}, now)
	}
	if n := len(m.feed.events); n > mostEvents {
		t.Errorf("%d events are kept, at most %d are to be", n, mostEvents)
	}
}

func TestAgentGoneAndBack(t *testing.T) {
	m, now := shown(3, 2)
	for range 5 {
		m.Handle(Failed{errors.New("no agent is running")}, now)
	}
	s := status(3, 3)
	s.Since = now
	m.Handle(Answered{s, time.Second}, now)
	var got []string
	for _, e := range m.feed.events {
		got = append(got, e.Text)
	}
	want := []string{"the agent does not answer: no agent is running", "the agent answers again", "the agent was restarted"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if picture := text(View(m, now, 80, 24, Look{})); strings.Contains(picture, "no answer for") {
		t.Errorf("it is back, but:\n%s", picture)
	}
}

func TestFrozen(t *testing.T) {
	m, now := shown(3, 3)
	press(m, now, " ")
	before := text(View(m, now, 80, 24, Look{}))
	for i := range 5 {
		m.Handle(Answered{status(9, 4+i), time.Second}, now.Add(time.Duration(i)*time.Second))
	}
	later := now.Add(10 * time.Second)
	if d := cmp.Diff(before, text(View(m, later, 80, 24, Look{}))); d != "" {
		t.Errorf("the picture changes although it is frozen:\n%s", d)
	}
	press(m, later, " ")
	if n := len(using(&m.feed.status).Connections); n != 9 {
		t.Errorf("%d connections after the thaw, want 9", n)
	}
}

func TestCursorStaysWithItsRow(t *testing.T) {
	m, now := shown(30, 3)
	press(m, now, "end")
	chosen := m.cursor.id
	press(m, now, "s", "s")
	if m.cursor.id != chosen || m.rows[m.cursor.at].id != chosen {
		t.Errorf("sorted anew, the cursor is on %v, not %v", m.rows[m.cursor.at].id, chosen)
	}
	if picture := text(View(m, now, 80, 24, Look{})); !strings.Contains(picture, chosen.sub.remote.String()) {
		t.Errorf("the chosen row is not on the screen:\n%s", picture)
	}
	m.Handle(Answered{status(2, 4), time.Second}, now) // it has ended
	if r := m.cursor.row(m.rows); r == nil {
		t.Error("the chosen connection has ended, and no other is chosen")
	}
	m.Handle(Answered{status(0, 5), time.Second}, now)
	if r := m.cursor.row(m.rows); r != nil {
		t.Errorf("there is nothing, but %v is chosen", r)
	}
	press(m, now, "down", "w", "enter", "up", "tab", "tab", "tab", "end", "home")
}

func TestSorting(t *testing.T) {
	m, now := shown(12, 3)
	for _, want := range []struct {
		by    order
		first string
	}{
		{byTraffic, "[2001:db8:5::1]:22"}, {byAge, "203.0.113.11:443"}, {byServer, "203.0.113.0:443"}, {byRTT, "203.0.113.8:443"}, {byRetransmissions, "203.0.113.9:443"},
	} {
		if m.list.by != want.by {
			t.Fatalf("sorted by %v, want %v", m.list.by, want.by)
		}
		if got := m.rows[0].conn.Remote.String(); got != want.first {
			t.Errorf("by %v the first is %s, want %s", want.by, got, want.first)
		}
		press(m, now, "s")
	}
	if press(m, now, "S"); m.list.by != byRetransmissions {
		t.Errorf("S leads from the first to %v", m.list.by)
	}
}

func TestFilter(t *testing.T) {
	m, now := shown(30, 1)
	press(m, now, "/", "B", "o", "b", " ", "2", "0", "0", "1", "enter")
	if len(m.rows) == 0 || len(m.rows) >= 90 {
		t.Fatalf("%d rows", len(m.rows))
	}
	for _, r := range m.rows {
		if !r.conn.Remote.Addr().Is6() || len(r.conn.Subflows) == 1 {
			t.Errorf("%v does not fit", r.conn.Remote)
		}
	}
	press(m, now, "/", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace", "backspace")
	if m.list.filter != "" {
		t.Errorf("left of the filter: %q", m.list.filter)
	}
	for range 2 * longestFilter {
		press(m, now, "é")
	}
	if len(m.list.filter) > longestFilter+1 {
		t.Errorf("the filter has %d bytes", len(m.list.filter))
	}
	if press(m, now, "esc"); len(m.rows) == 0 || m.typing {
		t.Error("esc does not end the filter")
	}
}

func TestSteering(t *testing.T) {
	use := func(only bool) []Request {
		return []Request{AskSteer{api.SteerRequest{Word: api.SteerUse, Waypoints: []string{"bob"}, Only: only}}}
	}
	for _, test := range []struct {
		keys []Key
		want []Request
	}{
		{[]Key{"u", "y"}, nil}, // no waypoint is chosen
		{[]Key{"tab", "u"}, nil},
		{[]Key{"tab", "u", "n"}, nil},
		{[]Key{"tab", "u", "esc", "y"}, nil},
		{[]Key{"tab", "u", "y"}, use(false)},
		{[]Key{"tab", "u", "o"}, use(true)},
		{[]Key{"tab", "a", "o"}, nil},
		{[]Key{"tab", "down", "a", "y"}, []Request{AskSteer{api.SteerRequest{Word: api.SteerAvoid, Waypoints: []string{"carol"}}}}},
		{[]Key{"down", "down", "u", "y"}, nil},                // the direct path
		{[]Key{"down", "down", "down", "u", "y"}, use(false)}, // a detour
		{[]Key{"r", "y"}, []Request{AskSteer{api.SteerRequest{Word: api.SteerReset}}}},
		{[]Key{"w"}, nil},
		{[]Key{"down", "w"}, []Request{AskWhy{netip.MustParseAddrPort("[2001:db8:5::1]:22")}}},
		{[]Key{"q"}, []Request{Quit{}}},
		{[]Key{"/", "q"}, nil},
		{[]Key{"/", "ctrl-c"}, []Request{Quit{}}},
		{[]Key{"?", "q"}, nil},
	} {
		m, now := shown(3, 1)
		if got := press(m, now, test.keys...); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: %v, want %v", test.keys, got, test.want)
		}
	}
}

// A panel shows all of its text, even if it wraps. After keys that go beyond the end, the next key still has an effect.
func TestPanelScrolls(t *testing.T) {
	m, now := shown(3, 1)
	m.feed.status.Problems = []string{"the certificate expires in 2 h, and no coordinator answers: check that TCP port 45672 of coordinator.example is reachable, at last"}
	const columns, rows = 24, 6
	picture := func() string { return text(View(m, now, columns, rows, Look{})) }
	press(m, now, "p")
	for _, keys := range [][]Key{{"down", "down", "down", "down", "down", "down", "down", "down", "down"}, {"home", "end"}} {
		for _, k := range keys {
			press(m, now, k)
			picture()
		}
		end := picture()
		if !strings.Contains(end, "at last") {
			t.Errorf("after %q the end is not shown:\n%s", keys, end)
		}
		if press(m, now, "up"); picture() == end {
			t.Errorf("after %q, the key up does nothing", keys)
		}
	}
	before := picture()
	if press(m, now, "right"); picture() != before {
		t.Errorf("a text that fits moves sideways:\n%s", picture())
	}
	press(m, now, "esc", "?")
	for range 20 {
		press(m, now, "right")
		picture()
	}
	right := picture()
	if press(m, now, "left"); picture() == right {
		t.Error("after many keys to the right, the key left does nothing")
	}
}

// The key w explains only the chosen connection, however many lead to its server. On a narrow terminal its reasons can
// be read without moving the text sideways.
func TestWhyOfOneConnection(t *testing.T) {
	const because = "a spare: messages take 22.6 ms over it, 16.7 ms through bob"
	for _, columns := range []int{20, 40, 80} {
		m, now := shown(3, 1)
		press(m, now, "down", "w")
		chosen := m.cursor.row(m.rows).conn
		w := api.Why{
			Server: m.panel.waits, Candidates: []api.Candidate{{Waypoint: "carol", Kind: "in-band", Why: because}},
			Fixes: []string{"dcol use --reset takes waypoints as the configuration says"},
		}
		for i := range 50 {
			c := *chosen
			c.Token, c.Note = fmt.Sprint(i), "another connection"
			w.Connections = append(w.Connections, c)
		}
		w.Connections = append(w.Connections, *chosen)
		m.Handle(Explained{Server: m.panel.waits, Why: w}, now)
		var words []string
		for range 40 {
			words = append(words, strings.Fields(text(View(m, now, columns, 24, Look{})))...)
			press(m, now, "pgdn")
		}
		all := strings.Join(words, " ")
		for _, want := range []string{because, w.Fixes[0]} {
			for _, word := range strings.Fields(want) {
				if !strings.Contains(all, word) {
					t.Errorf("with %d columns, %q of %q is not shown:\n%s", columns, word, want, all)
				}
			}
		}
		if strings.Contains(all, "another") {
			t.Errorf("with %d columns, other connections are shown:\n%s", columns, all)
		}
	}
}

func TestEvery(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0: time.Second, 3 * time.Millisecond: time.Second, 5 * time.Millisecond: 2 * time.Second, time.Minute: seldom,
	} {
		if got := every(cost); got != want {
			t.Errorf("%v: every %v, want %v", cost, got, want)
		}
	}
}

// Connections change places only if their traffic differs clearly, however much it varies.
func TestOrderIsCalm(t *testing.T) {
	var h connHistory
	h.all.add(1e6) // the boundary between two levels
	h.rank()
	was := h.level
	for i := range 100 {
		h.all.add([]float64{0.9e6, 1.05e6}[i%2])
		if h.rank(); h.level != was {
			t.Fatalf("after %d rates the level is %v, was %v", i, h.level, was)
		}
	}
	for range samples {
		h.all.add(10e6)
		h.rank()
	}
	if h.level <= was {
		t.Errorf("ten times the rate has level %v, before %v", h.level, was)
	}
	for range samples {
		h.all.add(0)
		h.rank()
	}
	if h.level != 0 {
		t.Errorf("idle, it has level %v", h.level)
	}
}

// Loss is that of the last states. It is a dash if the host sent next to nothing, because it does not know what the
// peer retransmitted.
func TestLoss(t *testing.T) {
	var h sentHistory
	want := func(text string) {
		t.Helper()
		if c := h.lately().loss(); c.text != text {
			t.Errorf("after %d states, loss is %s, not %s", h.n, c.text, text)
		}
	}
	want("-")
	h.add(&api.Subflow{Segments: 1000, Retransmitted: 500})
	want("-")
	h.add(&api.Subflow{Segments: 1100, Retransmitted: 501})
	want("1.0 %")
	for range lossSamples {
		h.add(&api.Subflow{Segments: 1100, Retransmitted: 501})
	}
	want("-")
	h.add(&api.Subflow{Segments: 1200, Retransmitted: 601})
	want("100 %")
	h.add(&api.Subflow{})
	want("-")
}

// Columns stay where they are, whatever numbers are shown.
func TestColumnsStay(t *testing.T) {
	for _, columns := range []int{40, 80, 110, 160} {
		quietly, now := shown(3, 3)
		busy := status(3, 4)
		for i := range busy.Client.Connections {
			for j := range busy.Client.Connections[i].Subflows {
				s := &busy.Client.Connections[i].Subflows[j]
				s.ReceiveRate, s.SendRate, s.Retransmitted, s.RTT, s.State = 99.9e9, 1e3, 1_000_000, 9999.9, api.SubflowJoining
				s.Segments, s.Queued = 9_000_000, 999_999_999_999
			}
		}
		at := func() int {
			for _, l := range View(quietly, now, columns, 24, Look{}) {
				if s := l.String(); strings.HasPrefix(s, "CONNECTION") {
					return strings.Index(s, "IN")
				}
			}
			return -1
		}
		before := at()
		quietly.Handle(Answered{busy, time.Second}, now)
		if after := at(); before < 0 || after != before {
			t.Errorf("%d columns: IN moved from %d to %d", columns, before, after)
		}
	}
}

func BenchmarkAnswered(b *testing.B) {
	states := []api.Status{status(1000, 0), status(1000, 1), status(1000, 2)}
	var m Model
	i := 0
	for b.Loop() {
		m.Handle(Answered{states[i%3], time.Second}, start)
		View(&m, start, 160, 50, Look{})
		i++
	}
}

// The addresses of one waypoint can be distinguished, and each shows the rate of the detours that use it.
func TestWaypointWithSeveralAddresses(t *testing.T) {
	at := netip.MustParseAddrPort
	ready := func(kind string) []api.WaypointKind { return []api.WaypointKind{{Kind: kind, State: api.KindReady}} }
	f := feed{status: api.Status{Client: &api.Using{
		Waypoints: []api.Waypoint{
			{Name: "bob", Addr: at("192.0.2.7:45672"), Kinds: ready("mapped")}, {Name: "bob", Addr: at("[2001:db8::7]:45672"), Kinds: ready("wireguard")},
			{Name: "carol", Addr: at("192.0.2.8:45672")}, {Name: "carol", Addr: at("192.0.2.9:45672")}, {Name: "dave", Addr: at("192.0.2.10:45672")},
		},
		Connections: []api.Connection{{Subflows: []api.Subflow{
			{Kind: "direct", Remote: at("203.0.113.5:443"), ReceiveRate: 1},
			{Kind: "mapped", Waypoint: "bob", Remote: at("192.0.2.7:443"), ReceiveRate: 2},
			{Kind: "wireguard", Waypoint: "bob", Remote: at("203.0.113.5:443"), ReceiveRate: 4},
			{Kind: "mapped", Waypoint: "carol", Remote: at("192.0.2.9:443"), ReceiveRate: 8},
		}}},
	}}}
	list := f.status.Client.Waypoints
	for i, want := range []struct {
		name string
		in   float64
	}{{"bob, IPv4", 2}, {"bob, IPv6", 4}, {"carol, 192.0.2.8:45672", 0}, {"carol, 192.0.2.9:45672", 8}, {"dave", 0}} {
		if name, in := distinct(list, i), f.load()[idOf(&list[i])].in; name != want.name || in != want.in {
			t.Errorf("%s has %v, want %s with %v", name, in, want.name, want.in)
		}
	}
}

// The rate of a member is what its connections carried between two states. Nothing is known across a restart of the agent, and
// expelled members have none.
func TestServedRates(t *testing.T) {
	state := func(since time.Time, members ...api.Served) *api.Status {
		return &api.Status{Since: since, Serving: &api.Serving{Members: members}}
	}
	old := state(start, api.Served{Member: "erin", Bytes: 1000}, api.Served{Member: "frank", Bytes: 50}, api.Served{Member: "mallory", Bytes: 1})
	now := state(start, api.Served{Member: "erin", Bytes: 3000}, api.Served{Member: "frank", Bytes: 40}, api.Served{Member: "mallory", Bytes: 9, Expelled: true}, api.Served{Member: "new", Bytes: 500})
	want := []ServedRate{{"erin", 8000}, {"frank", 0}, {"new", 2000}}
	if got := ServedRates(old, now, 2*time.Second); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, got := range map[string][]ServedRate{
		"no time": ServedRates(old, now, 0), "another agent": ServedRates(old, state(start.Add(time.Hour), now.Serving.Members...), time.Second),
		"no waypoint": ServedRates(old, &api.Status{Since: start}, time.Second), "none before": ServedRates(&api.Status{Since: start}, now, time.Second),
	} {
		if got == nil || len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}
