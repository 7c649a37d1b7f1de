package claim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path/claim"
)

var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func heard(member string, at time.Time, claims ...claim.Claim) claim.Heard {
	return claim.Heard{Member: member, At: at, Claims: claims}
}

func about(waypoint string, loss claim.LossClass, goodput claim.GoodputClass) claim.Claim {
	return claim.Claim{Waypoint: waypoint, Loss: loss, Goodput: goodput}
}

func TestClasses(t *testing.T) {
	for share, want := range map[float64]string{0: "below 0.5 %", 0.005: "0.5 to 2 %", 0.03: "2 to 5 %", 0.05: "5 % or more", 1: "5 % or more"} {
		if got := claim.LossOf(share).String(); got != want {
			t.Errorf("loss of %v: %s, want %s", share, got, want)
		}
	}
	for rate, want := range map[float64]string{1: "below 1 Mbit/s", 1e6: "1 to 4 Mbit/s", 50e6: "16 to 64 Mbit/s", 1e12: "256 Mbit/s or more"} {
		if got := claim.GoodputOf(rate).String(); got != want {
			t.Errorf("goodput of %v: %s, want %s", rate, got, want)
		}
	}
	if claim.LossOf(1) != claim.MostLoss || claim.GoodputOf(1e12) != claim.MostGoodput {
		t.Error("the highest classes are not the highest")
	}
}

// What is shared needs several networks, and reveals none of them.
func TestSummary(t *testing.T) {
	one := []claim.Measured{{Loss: 0.1, Packets: 5000, Goodput: 1e9}}
	if c := claim.Summary("bob", one, claim.ShareFrom); !c.IsZero() {
		t.Errorf("one network: %+v", c)
	}
	few := []claim.Measured{{Loss: 0.1, Packets: 10}, {Loss: 0.1, Packets: 10}, {Loss: 0.1, Packets: 10}}
	if c := claim.Summary("bob", few, claim.ShareFrom); !c.IsZero() {
		t.Errorf("a few packets: %+v", c)
	}
	three := []claim.Measured{one[0], {Packets: 5000, Goodput: 2e6}, {Packets: 5000, Goodput: 3e6}}
	if c, want := claim.Summary("bob", three, claim.ShareFrom), about("bob", 1, 2); c != want {
		t.Errorf("three networks: %+v, want %+v", c, want)
	}
}

func TestHintFollowsWhoWasRight(t *testing.T) {
	b, now := claim.NewBook(), birth
	hear := func() {
		b.Hear([]claim.Heard{
			heard("alice", now, about("x", 1, 5), about("y", 1, 5), about("z", 1, 2)),
			heard("mallory", now, about("x", 4, 1), about("z", 4, 6)),
			heard("mia", now, about("z", 4, 6)),
			heard("moe", now, about("z", 4, 6)),
		}, now)
	}
	hear()
	if h := b.Hint("z", now); h.Goodput != 6 || h.Proven || h.Members != 4 {
		t.Fatalf("of strangers the median: %+v", h)
	}
	b.Compare([]claim.Claim{about("x", 1, 5), about("y", 1, 4)}, claim.MostGoodput, now)
	if h := b.Hint("z", now); h.Goodput != 2 || !h.Proven || h.Members != 1 || h.Wrong != 1 {
		t.Errorf("alice was right, mallory was wrong: %+v", h)
	}
	// Neither silence nor an honest claim removes the verdict on mallory.
	b.Hear(nil, now)
	now = now.Add(time.Hour)
	b.Hear([]claim.Heard{heard("mallory", now, about("x", 1, 5), about("z", 4, 6))}, now)
	b.Compare([]claim.Claim{about("x", 1, 5)}, claim.MostGoodput, now)
	if h := b.Hint("z", now); h.Members != 0 || h.Wrong != 1 || h.Goodput != 0 {
		t.Errorf("forgiven within the hour: %+v", h)
	}
	now = now.Add(8 * 24 * time.Hour)
	b.Hear([]claim.Heard{heard("mallory", now, about("z", 1, 2))}, now)
	if h := b.Hint("z", now); h.Members != 1 || h.Wrong != 0 {
		t.Errorf("never forgiven: %+v", h)
	}
}

// Invalid, old and too many claims count for nothing.
func TestBadClaims(t *testing.T) {
	now := birth
	many := make([]claim.Claim, claim.Most+1)
	for i := range many {
		many[i] = about(fmt.Sprint("w", i), 1, 6)
	}
	for name, h := range map[string]claim.Heard{
		"of itself":     heard("x", now, about("x", 1, 6)),
		"old":           heard("a", now.Add(-claim.Lasts-time.Second), about("x", 1, 6)),
		"nobody's":      heard("", now, about("x", 1, 6)),
		"no class":      heard("a", now, about("x", claim.MostLoss+1, claim.MostGoodput+1)),
		"empty":         heard("a", now, about("x", 0, 0)),
		"too many":      heard("a", now, append(many, about("x", 1, 6))...),
		"of no one":     heard("a", now, about("", 1, 6)),
		"the other one": heard("a", now, about("y", 1, 6)),
	} {
		b := claim.NewBook()
		b.Hear([]claim.Heard{h}, now)
		if hint := b.Hint("x", now); hint != (claim.Hint{}) {
			t.Errorf("%s: %+v", name, hint)
		}
	}
	b := claim.NewBook()
	b.Hear([]claim.Heard{heard("a", now, about("x", 1, 2), about("x", 1, 6))}, now)
	if h := b.Hint("x", now); h.Goodput != 2 || h.Members != 1 {
		t.Errorf("two opinions of one member: %+v", h)
	}
	if h := b.Hint("x", now.Add(claim.Lasts+time.Second)); h.Members != 0 {
		t.Errorf("it lasts for ever: %+v", h)
	}
}

// The number of members is bounded, and a crowd cannot push out members with verdicts.
func TestCrowd(t *testing.T) {
	b, now := claim.NewBook(), birth
	honest := heard("zoe", now, about("x", 1, 3), about("y", 1, 3), about("z", 1, 3))
	b.Hear([]claim.Heard{honest}, now)
	b.Compare([]claim.Claim{about("x", 1, 3), about("y", 1, 3)}, claim.MostGoodput, now)
	all := []claim.Heard{honest}
	for i := range 5000 {
		all = append(all, heard(fmt.Sprint("sybil", i), now.Add(time.Minute), about("z", 1, 6)))
	}
	b.Hear(all, now)
	if h := b.Hint("z", now); !h.Proven || h.Goodput != 3 {
		t.Errorf("%+v", h)
	}
	b = claim.NewBook()
	b.Hear(all, now)
	if h := b.Hint("z", now); h.Members > 256 {
		t.Errorf("%d members are kept", h.Members)
	}
}

// Of n members k lie about all waypoints, as they like. While they are fewer than half, the hint is near the truth.
// Once two waypoints that the liars lied about were measured, none of them counts, however many they are.
func TestLiars(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		waypoints := []string{"a", "b", "c", "d", "e"}
		truth := make(map[string]claim.Claim)
		for _, w := range waypoints {
			truth[w] = about(w, claim.LossClass(rapid.IntRange(1, 4).Draw(t, "loss")), claim.GoodputClass(rapid.IntRange(1, 6).Draw(t, "goodput")))
		}
		honest, liars := rapid.IntRange(1, 6).Draw(t, "honest"), rapid.IntRange(0, 12).Draw(t, "liars")
		now := birth
		var all []claim.Heard
		for i := range honest {
			h := heard(fmt.Sprint("honest", i), now)
			for _, w := range waypoints {
				h.Claims = append(h.Claims, truth[w])
			}
			all = append(all, h)
		}
		for i := range liars {
			h := heard(fmt.Sprint("liar", i), now)
			for j, w := range waypoints {
				lie := about(w, claim.LossClass(rapid.IntRange(1, 4).Draw(t, "lie")), claim.GoodputClass(rapid.IntRange(1, 6).Draw(t, "lie")))
				if j < 2 { // it certainly lies about these
					lie.Goodput = claim.MostGoodput
					if truth[w].Goodput > 3 {
						lie.Loss = 1
						if truth[w].Loss < 3 {
							lie.Loss = claim.MostLoss
						}
					}
				}
				h.Claims = append(h.Claims, lie)
			}
			all = append(all, h)
		}
		b := claim.NewBook()
		b.Hear(rapid.Permutation(all).Draw(t, "order"), now)
		if liars < honest {
			for _, w := range waypoints {
				if h := b.Hint(w, now); h.Claim != truth[w] {
					t.Fatalf("%s: %+v, but it is %+v", w, h, truth[w])
				}
			}
		}
		b.Compare([]claim.Claim{truth["a"], truth["b"]}, claim.MostGoodput, now)
		for _, w := range waypoints {
			if h := b.Hint(w, now); h.Claim != truth[w] || !h.Proven || h.Wrong != liars || h.Members != honest {
				t.Fatalf("after measuring a and b, %s: %+v, but it is %+v", w, h, truth[w])
			}
		}
	})
}

// A waypoint without claims ranks between good and bad ones.
func TestRank(t *testing.T) {
	rank := func(c claim.Claim, bulk bool) int { return claim.Hint{Claim: c}.Rank(bulk) }
	for _, order := range [][]int{
		{rank(about("", 1, 6), true), rank(about("", 4, 6), true), rank(about("", 0, 4), true), rank(about("", 0, 0), true), rank(about("", 0, 2), true), rank(about("", 4, 1), true)},
		{rank(about("", 1, 1), false), rank(about("", 0, 0), false), rank(about("", 3, 6), false), rank(about("", 4, 6), false)},
	} {
		if !slices.IsSorted(order) {
			t.Errorf("not in order: %v", order)
		}
	}
}
