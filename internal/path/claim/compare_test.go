package claim_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path/claim"
)

// Members that measure the same truth, each over its own line, never call each other liars, whichever line is the
// slowest and however little each knows of its own.
func TestLinesDiffer(t *testing.T) {
	class := rapid.Custom(func(t *rapid.T) claim.GoodputClass {
		return claim.GoodputClass(rapid.IntRange(1, int(claim.MostGoodput)).Draw(t, "class"))
	})
	rapid.Check(t, func(t *rapid.T) {
		waypoints := rapid.SliceOfN(class, 1, claim.Most).Draw(t, "waypoints")
		over := func(line claim.GoodputClass) (list []claim.Claim, most claim.GoodputClass) {
			for i, gives := range waypoints {
				if rapid.Bool().Draw(t, "measured") {
					list = append(list, about(fmt.Sprint("w", i), 1, min(gives, line)))
					most = max(most, min(gives, line))
				}
			}
			return list, most
		}
		b, now := claim.NewBook(), birth
		theirs, _ := over(class.Draw(t, "their line"))
		b.Hear([]claim.Heard{heard("honest", now, theirs...)}, now)
		line := class.Draw(t, "line")
		own, most := over(line)
		if rapid.Bool().Draw(t, "direct path was measured") {
			most = line
		}
		b.Compare(own, most, now)
		for _, v := range b.Verdicts() {
			if !v.Agreed {
				t.Fatalf("waypoints %v, own %v on a line of %v, theirs %v: %+v", waypoints, own, line, theirs, v)
			}
		}
	})
}

// A claim is refuted if no line can be the limit, and nothing is proven if one may be.
func TestComparison(t *testing.T) {
	const agreed, wrong, none = "agreed", "wrong", ""
	for name, c := range map[string]struct {
		theirs []claim.Claim
		own    claim.Claim
		line   claim.GoodputClass
		want   string
	}{
		"the same":                               {[]claim.Claim{about("x", 1, 3)}, about("x", 1, 3), 3, agreed},
		"one class apart":                        {[]claim.Claim{about("x", 1, 4)}, about("x", 2, 3), 3, agreed},
		"too much, on a fast line":               {[]claim.Claim{about("x", 1, 6)}, about("x", 1, 3), 5, wrong},
		"too much, but the own line is slow":     {[]claim.Claim{about("x", 1, 6)}, about("x", 1, 3), 3, none},
		"too much, but the line may be little":   {[]claim.Claim{about("x", 1, 6)}, about("x", 1, 3), 4, none},
		"too little, with a line that does more": {[]claim.Claim{about("x", 1, 1), about("y", 1, 4)}, about("x", 1, 5), 5, wrong},
		"too little, but their line may be slow": {[]claim.Claim{about("x", 1, 1), about("y", 1, 1)}, about("x", 1, 5), 5, none},
		"wrong loss, whatever the lines":         {[]claim.Claim{about("x", 4, 6)}, about("x", 1, 3), 3, wrong},
		"loss alone":                             {[]claim.Claim{about("x", 1, 0)}, about("x", 1, 3), 3, agreed},
		"nothing in common":                      {[]claim.Claim{about("x", 1, 0)}, about("x", 0, 3), 3, none},
	} {
		b := claim.NewBook()
		b.Hear([]claim.Heard{heard("m", birth, c.theirs...)}, birth)
		b.Compare([]claim.Claim{c.own}, c.line, birth)
		got := none
		if v := b.Verdicts(); len(v) == 1 && v[0].Agreed {
			got = agreed
		} else if len(v) == 1 {
			got = wrong
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A wrong member stays wrong after a restart, and a right one is believed again at once.
func TestVerdictsAreRecalled(t *testing.T) {
	now := birth
	before := claim.NewBook()
	before.Hear([]claim.Heard{heard("mallory", now, about("x", 4, 1)), heard("alice", now, about("x", 1, 3), about("y", 1, 3))}, now)
	before.Compare([]claim.Claim{about("x", 1, 3), about("y", 1, 3)}, 3, now)
	if n := len(before.Verdicts()); n != 3 {
		t.Fatalf("%d verdicts", n)
	}
	now = now.Add(24 * time.Hour)
	b := claim.NewBook()
	b.Recall(before.Verdicts(), now)
	b.Hear([]claim.Heard{heard("mallory", now, about("z", 1, 6)), heard("alice", now, about("z", 1, 2))}, now)
	if h := b.Hint("z", now); !h.Proven || h.Members != 1 || h.Wrong != 1 || h.Goodput != 2 {
		t.Errorf("after the restart: %+v", h)
	}
	late := claim.NewBook()
	if late.Recall(before.Verdicts(), now.Add(7*24*time.Hour)); len(late.Verdicts()) > 0 {
		t.Errorf("after eight days: %+v", late.Verdicts())
	}
}

// Whatever a file says, impossible verdicts are left out, and the rest is bounded.
func TestVerdictsOfNonsense(t *testing.T) {
	now := birth
	fine := claim.Verdict{Member: "m", Waypoint: "w", Agreed: true, At: now}
	for name, change := range map[string]func(*claim.Verdict){
		"of nobody":      func(v *claim.Verdict) { v.Member = "" },
		"about nothing":  func(v *claim.Verdict) { v.Waypoint = "" },
		"about itself":   func(v *claim.Verdict) { v.Waypoint = v.Member },
		"endless name":   func(v *claim.Verdict) { v.Member = fmt.Sprintf("%064d", 0) },
		"of the future":  func(v *claim.Verdict) { v.At = now.Add(time.Second) },
		"long ago":       func(v *claim.Verdict) { v.At = now.Add(-8 * 24 * time.Hour) },
		"of no time":     func(v *claim.Verdict) { v.At = time.Time{} },
		"twice the same": func(*claim.Verdict) {},
	} {
		v := fine
		change(&v)
		b := claim.NewBook()
		b.Recall([]claim.Verdict{fine, v}, now)
		if got := b.Verdicts(); len(got) != 1 || got[0] != fine {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var many []claim.Verdict
	for i := range 100_000 {
		many = append(many, claim.Verdict{Member: fmt.Sprint("m", i%1000), Waypoint: fmt.Sprint("w", i/1000), At: now})
	}
	b := claim.NewBook()
	b.Recall(many, now)
	if n := len(b.Verdicts()); n != 256*32 {
		t.Errorf("of 100,000 verdicts %d are kept", n)
	}
}

// Members that have left do not keep others out for a week: those that were judged longest ago give way.
func TestSilentMembersGiveWay(t *testing.T) {
	b, now := claim.NewBook(), birth
	for i := range 256 {
		now = now.Add(time.Second)
		b.Hear([]claim.Heard{heard(fmt.Sprint("old", i), now, about("x", 4, 1))}, now)
		b.Compare([]claim.Claim{about("x", 1, 1)}, 1, now)
	}
	if n := len(b.Verdicts()); n != 256 {
		t.Fatalf("%d verdicts", n)
	}
	b.Hear([]claim.Heard{heard("new", now, about("z", 1, 3)), heard("old0", now, about("z", 1, 6))}, now)
	if h := b.Hint("z", now); h.Members != 1 || h.Wrong != 1 || h.Goodput != 3 {
		t.Errorf("%+v", h)
	}
	list := b.Verdicts()
	if n := len(list); n != 255 {
		t.Errorf("%d verdicts are left", n)
	}
	for _, v := range list {
		if v.Member == "old1" {
			t.Error("the one judged longest ago is kept")
		}
	}
}
