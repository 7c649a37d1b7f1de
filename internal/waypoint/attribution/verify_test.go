package attribution

import (
	"crypto/ed25519"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/session/wire"
)

func lines(content string) []string {
	return strings.SplitAfter(strings.TrimSuffix(content, "\n"), "\n")
}

// faultsOf are the kinds of faults, in their order.
func faultsOf(r *Report) (kinds []FaultKind) {
	for _, f := range r.Faults {
		kinds = append(kinds, f.Kind)
	}
	return kinds
}

func words(t testing.TB, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWholeLogIsProven(t *testing.T) {
	c := newTestCollective()
	content := c.story(t, filepath.Join(t.TempDir(), "log"), 10)
	r := c.verifyText(t, content)
	if !r.Complete() || !r.Closed || r.Waypoint != "bob" || r.Collective != "test" || r.Sessions != 2 || r.Flows != 10+4 || r.FlowsByName != 0 {
		t.Errorf("%+v", r)
	}
	n := uint64(len(lines(content)))
	if r.Lines != n || !slices.Equal(r.Proven, []Part{{"bob", Span{0, n - 1}}}) || r.Head.N != n-1 {
		t.Errorf("%d lines, proven %v, head %v", r.Lines, r.Proven, r.Head)
	}
	for _, want := range []string{"of waypoint bob", fmt.Sprintf("Proven: lines 0 to %d", n-1), "2 sessions were made", "was closed when its agent stopped"} {
		if !strings.Contains(words(t, r), want) {
			t.Errorf("it does not say %q:\n%s", want, words(t, r))
		}
	}
}

// Whatever single thing is changed in a closed log, it is found.
func TestAnyChangeIsFound(t *testing.T) {
	c := newTestCollective()
	content := c.story(t, filepath.Join(t.TempDir(), "log"), 12)
	whole := lines(content)
	rapid.Check(t, func(t *rapid.T) {
		changed := slices.Clone(whole)
		line := func(what string) int { return rapid.IntRange(0, len(whole)-1).Draw(t, what) }
		var text string
		switch what := rapid.SampledFrom([]string{"edit", "remove", "swap", "repeat", "move", "cut", "drop byte", "add byte"}).Draw(t, "what"); what {
		case "remove":
			i := line("from")
			j := rapid.IntRange(i+1, len(whole)).Draw(t, "to")
			changed = slices.Delete(changed, i, j)
		case "swap":
			i, j := line("one"), line("other")
			changed[i], changed[j] = changed[j], changed[i]
		case "repeat":
			i, at := line("one"), line("at")
			changed = slices.Insert(changed, at, changed[i])
		case "move":
			i := line("one")
			moved := changed[i]
			changed = slices.Delete(changed, i, i+1)
			changed = slices.Insert(changed, rapid.IntRange(0, len(changed)).Draw(t, "to"), moved)
		}
		text = strings.Join(changed, "")
		if text == content { // a single byte, then
			i := rapid.IntRange(0, len(content)-1).Draw(t, "byte")
			b := rapid.Byte().Filter(func(b byte) bool { return b != content[i] }).Draw(t, "value")
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				text = content[:i]
			case 1:
				text = content[:i] + content[i+1:]
			case 2:
				text = content[:i] + string(b) + content[i:]
			default:
				text = content[:i] + string(b) + content[i+1:]
			}
		}
		if text == content {
			t.Skip("nothing is changed")
		}
		r, err := Verify([]File{memory("log", text)}, c.authority)
		if err != nil {
			t.Fatal(err)
		}
		if r.Complete() && r.Closed {
			t.Fatalf("not found: %s", text)
		}
		// Everything reported as proven is unchanged.
		all := strings.Join(whole, "")
		for _, s := range r.Proven {
			var proven string
			for n := s.First; n <= s.Last && n < uint64(len(whole)); n++ {
				proven += whole[n]
			}
			if !strings.Contains(text, whole[s.First]) || !strings.Contains(all, proven) {
				t.Fatalf("proven %v of\n%s", s, text)
			}
		}
	})
}

// The report names where and how a log was changed.
func TestFaultsAreNamed(t *testing.T) {
	c := newTestCollective()
	content := c.story(t, filepath.Join(t.TempDir(), "log"), 12)
	whole := lines(content)
	last := len(whole) - 1
	if last < 12 {
		t.Fatalf("the log has %d lines only", len(whole))
	}
	tests := map[string]struct {
		change func(l []string) []string
		kinds  []FaultKind
		place  string
		words  string
	}{
		"edited": {func(l []string) []string { l[5] = strings.Replace(l[5], "198.51.100.1", "198.51.100.2", 1); return l },
			[]FaultKind{Changed}, "log:6", "the line was changed"},
		"edited to nonsense": {func(l []string) []string { l[5] = strings.Replace(l[5], "{", "[", 1); return l },
			[]FaultKind{Changed}, "log:6", "cannot be understood"},
		"renumbered": {func(l []string) []string { l[5] = strings.Replace(l[5], `"n":5`, `"n":7`, 1); return l },
			[]FaultKind{Changed, Changed}, "log:6", "must have number 5, but has 7"},
		"removed": {func(l []string) []string { return slices.Delete(l, 5, 8) },
			[]FaultKind{Missing}, "log:6", "lines 5 to 7 should stand before"},
		"swapped": {func(l []string) []string { l[7], l[8] = l[8], l[7]; return l },
			[]FaultKind{Missing, Reordered}, "log:8", "line 7 should stand before"},
		"repeated": {func(l []string) []string { return slices.Insert(l, 9, l[4]) },
			[]FaultKind{Added}, "log:10", "line 4 is repeated"},
		"put in": {func(l []string) []string {
			forged := strings.Replace(l[5], "alice", "carol", 1)
			return slices.Insert(l, 5, forged)
		}, []FaultKind{Added}, "log:6", "was inserted"},
		"first line gone": {func(l []string) []string { return l[1:] },
			[]FaultKind{Missing}, "log:1", "does not begin with the line that names the log's owner"},
		"cut in the middle": {func(l []string) []string { l[5] = l[5][:20]; return l[:6] }, nil, "", "log:6, an incomplete line"},
		"cut after a line":  {func(l []string) []string { return l[:6] }, nil, "", "or lines at the end were cut off"},
		"two lines made one": {func(l []string) []string { l[5] = strings.TrimSuffix(l[5], "\n"); return l },
			[]FaultKind{Changed, Missing}, "log:6", "cannot be understood"},
		"all gone": {func([]string) []string { return nil }, []FaultKind{Missing}, "the log", "it is empty"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := c.verifyText(t, strings.Join(test.change(slices.Clone(whole)), ""))
			if !slices.Equal(faultsOf(r), test.kinds) {
				t.Errorf("faults %+v, want %v", r.Faults, test.kinds)
			}
			if len(r.Faults) > 0 && r.Faults[0].Place != test.place {
				t.Errorf("at %s, want %s", r.Faults[0].Place, test.place)
			}
			if got := words(t, r); !strings.Contains(got, test.words) {
				t.Errorf("it does not say %q:\n%s", test.words, got)
			}
			if len(test.kinds) > 0 && r.Clean() || r.Complete() && r.Closed {
				t.Error("taken for whole")
			}
		})
	}
}

// forge writes a log of these entries, by an author, without checking their content.
func forge(t *testing.T, by testMember, change func(*Author), entries ...Entry) string {
	t.Helper()
	author := by.author()
	if change != nil {
		change(&author)
	}
	b := &batch{chain: newChain(time.Now()), author: &author, bytes: make(map[string]int), shown: make(map[wire.SessionID]bool), fresh: make(map[wire.SessionID]bool)}
	b.begin(time.Now())
	for _, e := range entries {
		b.add(e)
	}
	b.sign(time.Now(), logClosed)
	return string(b.text)
}

// A waypoint that signs requests its members did not make is detected by their statements.
func TestWhatAWaypointCannotForge(t *testing.T) {
	c := newTestCollective()
	bob, alice, carol := c.member("bob", "0b"), c.member("alice", "0a"), c.member("carol", "0c")
	good := alice.session("bob", time.Now())
	with := func(change func(*Session)) Entry { s := *good; change(&s); return flow(&s, 1) }
	if r := c.verifyText(t, forge(t, bob, nil, flow(good, 1))); !r.Complete() {
		t.Fatalf("a good log: %+v", r.Faults)
	}
	outside := newTestCollective().member("mallory", "66")
	byCarol := flow(good, 1)
	byCarol.Member = "carol"
	for name, test := range map[string]struct {
		content string
		kind    FaultKind
		words   string
	}{
		"another's session":     {forge(t, bob, nil, with(func(s *Session) { s.Session[0] ^= 1 })), BadStatement, "has not signed this statement"},
		"another time":          {forge(t, bob, nil, with(func(s *Session) { s.Time = s.Time.Add(time.Second) })), BadStatement, "has not signed"},
		"another member":        {forge(t, bob, nil, with(func(s *Session) { s.Member = "carol" })), BadStatement, "names carol"},
		"another certificate":   {forge(t, bob, nil, with(func(s *Session) { s.Chain = carol.chain() })), BadStatement, "certificate is that of carol"},
		"no member":             {forge(t, bob, nil, flow(outside.session("bob", time.Now()), 1)), BadStatement, "no member of this collective"},
		"another waypoint's":    {forge(t, bob, nil, flow(alice.session("carol", time.Now()), 1)), BadStatement, "another session, waypoint or time"},
		"used again":            {replayed(t, bob, good), BadStatement, "differs from before"},
		"not shown":             {replayed(t, bob), BadStatement, "the log lacks session"},
		"used on another day":   {forge(t, bob, nil, with(func(s *Session) { s.Opened = s.Opened.Add(24 * time.Hour) })), BadStatement, "the statement is from"},
		"certificate had ended": {forge(t, bob, nil, flow(alice.session("bob", time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)), 1)), BadStatement, "no member"},
		"blamed on another":     {forge(t, bob, nil, flow(good, 1), byCarol), BadStatement, "names carol"},
		"another's log":         {forge(t, carol, func(a *Author) { a.Waypoint = "bob" }), BadSignature, "it is of carol"},
		"signed by a stranger":  {forge(t, outside, func(a *Author) { a.Waypoint = "bob" }), BadSignature, "no member of this collective"},
		"signed by another key": {forge(t, bob, func(a *Author) {
			a.Sign = func(message func([][]byte) []byte) []byte { return ed25519.Sign(carol.key(), message(bob.chain())) }
		}), BadSignature, "not one of these lines"},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.verifyText(t, test.content)
			if !slices.Contains(faultsOf(r), test.kind) || !strings.Contains(words(t, r), test.words) {
				t.Errorf("want %s and %q:\n%s", test.kind, test.words, words(t, r))
			}
		})
	}
}

// replayed is a log that shows sessions twice, the second time as if opened a minute later, and then has a
// connection over another session that it does not show.
func replayed(t *testing.T, by testMember, sessions ...*Session) string {
	t.Helper()
	author := by.author()
	b := &batch{chain: newChain(time.Now()), author: &author, bytes: make(map[string]int)}
	b.begin(time.Now())
	for _, s := range sessions {
		b.append(s.evidence(time.Now()))
		later := *s
		later.Opened = s.Opened.Add(time.Minute)
		b.append(later.evidence(time.Now()))
	}
	l := line{Entry: flow(by.session(by.name, time.Now()), 1)}
	l.Session = l.By.Session
	b.append(l)
	b.sign(time.Now(), logClosed)
	return string(b.text)
}

// No later hash protects the last line: the signature in it covers all its content.
func TestNothingCanBeAddedToTheLastLine(t *testing.T) {
	c := newTestCollective()
	content := c.story(t, filepath.Join(t.TempDir(), "log"), 4)
	whole := lines(content)
	before, last := strings.Join(whole[:len(whole)-1], ""), parse([]byte(whole[len(whole)-1]))
	if again := before + string(last.encode(nil)); again != strings.TrimSuffix(content, "\n") {
		t.Fatal("the line is not as it was written when nothing is changed")
	}
	for name, change := range map[string]func(l *line){
		"field":          func(l *line) { l.Lost = 5 },
		"part of a time": func(l *line) { l.Time = l.Time.Add(time.Nanosecond) },
		"time zone":      func(l *line) { l.Time = l.Time.In(time.FixedZone("", 5400)) },
		"certificates":   func(l *line) { l.Chain = c.member("bob", "0c").chain() },
		"two chains":     func(l *line) { l.Chain = append(c.member("bob", "0b").chain(), c.member("bob", "0b").chain()...) },
		"event":          func(l *line) { l.Event = headSigned },
	} {
		t.Run(name, func(t *testing.T) {
			changed := *last
			change(&changed)
			text := before + string(changed.encode(nil)) + "\n"
			if text == content {
				t.Fatal("nothing is changed")
			}
			if r := c.verifyText(t, text); !slices.Contains(faultsOf(r), BadSignature) {
				t.Errorf("not found: %+v", r)
			}
		})
	}
	for name, text := range map[string]string{
		"unknown field": strings.TrimSuffix(content, "}\n") + `,"more":1}` + "\n",
		"space":         strings.TrimSuffix(content, "}\n") + " }\n",
	} {
		if r := c.verifyText(t, text); !slices.Contains(faultsOf(r), BadSignature) {
			t.Errorf("%s: not found: %+v", name, r)
		}
	}
}

// However a file is made, it takes no more time and memory than others of its size.
func TestManyFaults(t *testing.T) {
	c := newTestCollective()
	var b batch
	for n := range uint64(50000) {
		b.next, b.prev = 2*n, hash{1} // gaps everywhere, and twice: the missing batches come later
		b.append(line{Entry: Entry{Time: time.Unix(0, 0), Event: Refused}})
	}
	for n := range uint64(50000) {
		b.next, b.prev = 2*n+1, hash{1}
		b.append(line{Entry: Entry{Time: time.Unix(0, 0), Event: Refused}})
	}
	r := c.verifyText(t, string(b.text))
	if len(r.Faults) != maxListed || r.MoreFaults < 49999 {
		t.Errorf("%d faults, and %d more", len(r.Faults), r.MoreFaults)
	}
	if said := words(t, r); len(said) > 20000 {
		t.Errorf("it says so in %d bytes", len(said))
	}
}

// An attacker who can write the file but has no key cannot make a chain that is proven.
func TestRechainedLogIsNotProven(t *testing.T) {
	c := newTestCollective()
	whole := lines(c.story(t, filepath.Join(t.TempDir(), "log"), 6))
	var b batch
	for i, text := range whole {
		l := parse([]byte(text))
		if i == 5 {
			continue // the crime
		}
		b.append(*l)
	}
	r := c.verifyText(t, string(b.text))
	if !slices.Equal(faultsOf(r), []FaultKind{BadSignature}) || len(r.Proven) != 0 {
		t.Errorf("faults %+v, proven %v", r.Faults, r.Proven)
	}
}

// A head that was noted elsewhere reveals that a waypoint rewrote its log.
func TestKnownHead(t *testing.T) {
	c := newTestCollective()
	dir := t.TempDir()
	first := c.story(t, filepath.Join(dir, "log"), 6)
	head := c.verifyText(t, first).Head
	parsed, err := ParseHead(head.String())
	if err != nil || parsed != head {
		t.Fatalf("%v, %v", parsed, err)
	}
	longer := c.story(t, filepath.Join(dir, "log"), 6)
	again := c.story(t, filepath.Join(dir, "again"), 20)
	for _, test := range []struct {
		content string
		good    bool
	}{{first, true}, {longer, true}, {again, false}, {strings.Join(lines(first)[:4], ""), false}} {
		r, err := Verify([]File{memory("log", test.content)}, c.authority, head)
		if err != nil {
			t.Fatal(err)
		}
		if r.Clean() != test.good {
			t.Errorf("want good %v: %+v", test.good, r.Faults)
		}
	}
	for _, bad := range []string{"", "7", "7:", "x:" + head.Hash, "7:" + head.Hash[:62] + "zz", head.String() + "0"} {
		if _, err := ParseHead(bad); err == nil {
			t.Errorf("%q is taken for a head", bad)
		}
	}
}

// Clocks that step are noted; they are no fault.
func TestClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCollective()
		s := c.member("alice", "0a").session("bob", time.Now())
		early := flow(s, 1)
		early.Time = early.Time.Add(-24 * time.Hour)
		r := c.verifyText(t, forge(t, c.member("bob", "0b"), nil,
			flow(s, 1), early, flow(s, 2)))
		if !r.Complete() || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "clock went back") {
			t.Errorf("faults %v, notes %v", r.Faults, r.Notes)
		}
	})
}

// The cost of checking a log.
func BenchmarkVerify(b *testing.B) {
	c := newTestCollective()
	content := c.story(b, filepath.Join(b.TempDir(), "log"), 10000)
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		if r := c.verifyText(b, content); !r.Complete() {
			b.Fatalf("%+v", r.Faults)
		}
	}
}
