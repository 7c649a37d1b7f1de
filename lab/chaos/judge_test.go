package chaos

import (
	"errors"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
)

var start = time.Unix(1000, 0)

// record is a connection that ended so many seconds after the start.
func record(seconds int, err error) twin.Record {
	return twin.Record{Began: start, Ended: start.Add(time.Duration(seconds) * time.Second), Whole: err == nil, Err: err}
}

func TestJudgePairs(t *testing.T) {
	reset, wrong := errors.New("connection reset"), error(&twin.WrongBytesError{Offset: 7})
	for name, c := range map[string]struct {
		mptcp, plain  twin.Record
		broken, bytes int
	}{
		"both whole":                       {record(9, nil), record(9, nil), 0, 0},
		"the twin alone broke":             {record(9, nil), record(5, reset), 0, 0},
		"both broke":                       {record(5, reset), record(5, reset), 0, 0},
		"the twin broke a little later":    {record(5, reset), record(9, reset), 0, 0},
		"the twin lived on":                {record(5, reset), record(9, nil), 1, 0},
		"the twin lived on for long":       {record(5, reset), record(30, reset), 1, 0},
		"the twin hung, too":               {record(60, twin.ErrAborted), record(60, twin.ErrAborted), 0, 0},
		"the twin hung, the other was cut": {record(5, reset), record(60, twin.ErrAborted), 0, 0},
		"hung":                             {record(60, twin.ErrAborted), record(9, nil), 1, 0},
		"wrong bytes":                      {record(5, wrong), record(9, reset), 0, 1},
		"wrong bytes in the twin":          {record(9, nil), record(5, wrong), 0, 0},
	} {
		v := judge(Observations{Pairs: []PairRecord{{MPTCP: c.mptcp, Plain: c.plain}}})
		if len(v.Broken) != c.broken || len(v.WrongBytes) != c.bytes {
			t.Errorf("%s: %d broken and %d with wrong bytes, want %d and %d", name, len(v.Broken), len(v.WrongBytes), c.broken, c.bytes)
		}
	}
}

// What the kernel of an end hangs, no path manager can fix: it is told, and is no finding.
func TestJudgeHeld(t *testing.T) {
	v := judge(Observations{Pairs: []PairRecord{{MPTCP: record(60, twin.ErrAborted), Plain: record(9, nil), Held: true}}})
	if v.Bad() || len(v.Held) != 1 {
		t.Errorf("%+v", v)
	}
}

// A kernel that loses data of connections that became plain TCP is to blame for that, and for nothing else.
func TestJudgeLostByFallback(t *testing.T) {
	wrong := &twin.WrongBytesError{Offset: 5}
	reset := errors.New("connection reset by peer")
	for name, c := range map[string]struct {
		faulty, fallback bool
		err              error
		held             int
	}{
		"wrong bytes":                {true, true, wrong, 1},
		"an early end":               {true, true, twin.ErrTruncated, 1},
		"it stood still":             {true, true, twin.ErrAborted, 1},
		"a reset":                    {true, true, reset, 0},
		"wrong bytes with MPTCP":     {true, false, wrong, 0},
		"an early end with MPTCP":    {true, false, twin.ErrTruncated, 0},
		"wrong bytes, sound kernel":  {false, true, wrong, 0},
		"stood still, sound kernel":  {false, true, twin.ErrAborted, 0},
		"an early end, sound kernel": {false, true, twin.ErrTruncated, 1},
	} {
		r := record(5, c.err)
		r.Fallback = c.fallback
		v := judge(Observations{Pairs: []PairRecord{{MPTCP: r, Plain: record(9, nil)}}, LosesOverlaps: c.faulty})
		if len(v.Held) != c.held || v.Bad() == (c.held == 1) {
			t.Errorf("%s: %+v", name, v)
		}
		r.Stream.Converted = true // a relay may have ended it
		if v := judge(Observations{Pairs: []PairRecord{{MPTCP: r, Plain: record(9, nil)}}, LosesOverlaps: true}); !v.Bad() {
			t.Errorf("%s, converted: %+v", name, v)
		}
	}
}

// Linux opens no subflow for a connection that has closed its direction. If it is still open when the
// client's address changes or its NAT restarts, and its twin was not, the twin shows nothing.
func TestJudgeHalfClosed(t *testing.T) {
	life := record(60, twin.ErrAborted)
	life.Stream.Life = units.Duration(2 * time.Second)
	at := func(kind plan.Kind, seconds int) Strike {
		began := start.Add(time.Duration(seconds) * time.Second)
		return Strike{Fault: plan.Fault{Kind: kind}, Began: began, Done: began.Add(100 * time.Millisecond)}
	}
	slow := at(plan.Renumber, 4)
	slow.Done = slow.Began.Add(2 * time.Second)
	for name, c := range map[string]struct {
		mptcp  twin.Record
		strike Strike
		broken int
	}{
		"moved after both had closed":           {life, at(plan.Renumber, 6), 0},
		"NAT restarted after both had closed":   {life, at(plan.RestartNAT, 6), 0},
		"process killed after both had closed":  {life, at(plan.Kill, 6), 1},
		"moved while the twin was open":         {life, at(plan.Renumber, 4), 1},
		"NAT restarted while the twin was open": {life, at(plan.RestartNAT, 4), 1},
		"the twin ended during the change":      {life, slow, 0},
		"moved before it closed":                {life, at(plan.Renumber, 1), 1},
		"a connection as long as a world":       {record(60, twin.ErrAborted), at(plan.Renumber, 6), 1},
	} {
		v := judge(Observations{Pairs: []PairRecord{{MPTCP: c.mptcp, Plain: record(5, nil)}}, Strikes: []Strike{c.strike}})
		if len(v.Broken) != c.broken || len(v.Held) != 1-c.broken {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestJudgeTheRest(t *testing.T) {
	for name, c := range map[string]struct {
		seen Observations
		kind string
	}{
		"a packet without a right": {Observations{Unauthorised: map[string]int{"w1: a packet": 2}}, "unauthorised"},
		"too many tunnels":         {Observations{Excess: []string{"w1 granted a member 44 tunnels"}}, "unauthorised"},
		"own traffic led away":     {Observations{Stolen: []string{"leaves by dcolwg0", "leaves by dcolwg0"}}, "unauthorised"},
		"one path":                 {Observations{Lacking: []Paths{{Known: true, Ways: []string{"direct"}}}}, "unrecovered"},
		"direct from the start":    {Observations{Unconverted: []string{"download from here"}}, "unrecovered"},
		"relayed connections":      {remains(Holdings{}, Holdings{Relayed: 1}), "grown"},
		"a path that is dead":      {Observations{Still: []string{"download from here"}}, "unrecovered"},
		"descriptors":              {growth(Holdings{Descriptors: 20}, Holdings{Descriptors: 60}), "grown"},
		"memory":                   {growth(Holdings{Memory: 40_000}, Holdings{Memory: 140_000}), "grown"},
		"a namespace":              {growth(Holdings{Namespaces: 1}, Holdings{Namespaces: 2}), "grown"},
		"map entries":              {remains(Holdings{MapEntries: 2}, Holdings{MapEntries: 40}), "grown"},
		"tracked connections":      {remains(Holdings{}, Holdings{Tracked: 300}), "grown"},
		"an agent ended":           {Observations{Died: []string{"the agent of w1 ended"}}, "died"},
		"rules":                    {growth(Holdings{Rules: 100}, Holdings{Rules: 6000}), "grown"},
	} {
		v := judge(c.seen)
		for kind, found := range v.all() {
			if want := kind == c.kind; (len(found) == 1) != want {
				t.Errorf("%s: %s %q", name, kind, found)
			}
		}
		if !v.Bad() || !v.like(v) || v.like(judge(Observations{})) {
			t.Errorf("%s: bad %v", name, v.Bad())
		}
	}
	closing := remains(Holdings{MapEntries: 2}, Holdings{MapEntries: 40, Conntrack: 20})
	if v := judge(closing); v.Bad() {
		t.Errorf("entries of connections that conntrack still has count as growth: %+v", v)
	}
	renumbered := remains(Holdings{}, Holdings{Tracked: 29})
	if v := judge(renumbered); !v.Bad() {
		t.Error("29 tracked connections of four streams are no growth")
	}
	renumbered.Strikes = slices.Repeat([]Strike{{Fault: plan.Fault{Kind: plan.Renumber}}}, 3)
	if v := judge(renumbered); v.Bad() {
		t.Errorf("connections from three addresses that are gone count as growth: %+v", v)
	}
	moved := remains(Holdings{}, Holdings{Relayed: 12})
	moved.Strikes = []Strike{{Fault: plan.Fault{Kind: plan.Renumber}}}
	if v := judge(moved); v.Bad() {
		t.Errorf("connections from an address that is gone count as growth: %+v", v)
	}
	within := growth(Holdings{Memory: 40_000, Descriptors: 20, Rules: 100}, Holdings{Memory: 60_000, Descriptors: 25, Rules: 110})
	if v := judge(within); v.Bad() {
		t.Errorf("what comes and goes counts as growth: %+v", v)
	}
}

func growth(before, after Holdings) Observations {
	return Observations{Before: map[string]Holdings{"w1": before}, After: map[string]Holdings{"w1": after}}
}

func remains(before, after Holdings) Observations {
	return Observations{Idle: map[string]Holdings{"w1": before}, IdleAgain: map[string]Holdings{"w1": after}}
}

// Of paths whose waypoint drops TCP none counts, but those of which the client cannot
// know. What is plain TCP needs an excuse.
func TestLacking(t *testing.T) {
	two := []string{"direct", "w1"}
	for name, c := range map[string]struct {
		paths   Paths
		lacking bool
		moves   bool
	}{
		"two":                         {Paths{Known: true, Ways: two}, false, true},
		"one":                         {Paths{Known: true, Ways: two[:1]}, true, false},
		"one is dead":                 {Paths{Known: true, Ways: two, Dead: two[1:]}, true, false},
		"one is dead, and idle":       {Paths{Known: true, Ways: two, Dead: two[1:], Idle: two[1:]}, false, false},
		"one is dead, and left":       {Paths{Known: true, Ways: []string{"direct", "w1", "w2"}, Dead: two[1:]}, false, true},
		"the kernel does not have it": {Paths{}, true, false},
		"plain TCP":                   {Paths{Known: true, Fallback: true, Ways: two[:1]}, true, false},
		"plain TCP since a fault":     {Paths{Known: true, Fallback: true, Ways: two[:1], Excused: "fault"}, false, false},
	} {
		if got := c.paths.lacking(); got != c.lacking {
			t.Errorf("%s: lacking %v", name, got)
		}
		if got := c.paths.moves(); got != c.moves {
			t.Errorf("%s: moves %v", name, got)
		}
	}
	o := Observations{Strikes: []Strike{{Began: start.Add(time.Minute), Ended: start.Add(2 * time.Minute)}}}
	for after, want := range map[time.Duration]bool{0: false, 57 * time.Second: true, 90 * time.Second: true, 3 * time.Minute: false} {
		if got := o.inTrouble(start.Add(after)); got != want {
			t.Errorf("a connection that began after %v: in trouble %v", after, got)
		}
	}
}

// All but one waypoint are spared by what spoils them.
func TestSpoiled(t *testing.T) {
	s := distrusted{}
	for _, busiest := range []string{"w2", "w1", "w3"} {
		if got := s.take(busiest); got != "w2" {
			t.Errorf("%s is busiest: %s is distrusted, want w2", busiest, got)
		}
	}
}

// An agent ends when it is struck, and then properly.
func TestFailureOf(t *testing.T) {
	run := func(script string) error { return exec.Command("sh", "-c", script).Run() }
	for name, c := range map[string]struct {
		struck syscall.Signal
		err    error
		want   bool
	}{
		"by itself":                   {0, nil, true},
		"by itself, badly":            {0, run("exit 2"), true},
		"killed by nobody":            {0, run("kill -KILL $$"), true},
		"killed":                      {syscall.SIGKILL, run("kill -KILL $$"), false},
		"told to end":                 {syscall.SIGTERM, nil, false},
		"told to end before it heard": {syscall.SIGTERM, run("kill -TERM $$"), false},
		"told to end, and panicked":   {syscall.SIGTERM, run("exit 2"), true},
	} {
		failure := failureOf("the agent", c.struck, c.err)
		if (failure != "") != c.want {
			t.Errorf("%s: %q", name, failure)
		}
	}
}

func TestTooFast(t *testing.T) {
	syns := func(n int, every time.Duration) (all []time.Time) {
		for i := range n {
			all = append(all, start.Add(time.Duration(i)*every))
		}
		return all
	}
	for name, c := range map[string]struct {
		syns []time.Time
		want bool
	}{
		"nothing":                   {nil, false},
		"a burst":                   {syns(scanBurst, 0), false},
		"a larger burst":            {syns(2*scanBurst, 0), true},
		"many, slowly":              {syns(3000, 20*time.Millisecond), false},
		"many, fast":                {syns(3000, 2*time.Millisecond), true},
		"fast after a quiet minute": {append(syns(60, time.Second), syns(3000, time.Millisecond)...), true},
	} {
		if got := tooFast(c.syns); (got != "") != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What opens a connection is told from the head of a packet, of which the rest is not
// read; what is shorter than that does not open one.
func TestOpens(t *testing.T) {
	head := []byte{
		0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 1, 1, 10, 0, 3, 2,
		0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, byte(packet.SYN), 0xdc, 0x0f, 0, 0, 0, 0,
	}
	p, err := packet.Parse(head)
	if err != nil {
		t.Fatal(err)
	}
	if !opens(p) || p.From().String() != "10.0.1.1:12345" || p.To().String() != "10.0.3.2:80" || p.TCP.Window != attack.ForgedWindow {
		t.Errorf("%+v", p)
	}
	for n := range head {
		if p, _ := packet.Parse(head[:n]); p != nil && (n < 20 || n < 34 && opens(p)) {
			t.Errorf("of %d bytes: %+v", n, p)
		}
	}
	head[33] |= byte(packet.ACK)
	if p, err := packet.Parse(head); err != nil || opens(p) {
		t.Errorf("an answer opens a connection: %v", err)
	}
}
