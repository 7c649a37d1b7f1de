package membership

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective"
)

var aWeek = life{birth, birth.Add(7 * 24 * time.Hour)}

func week() collective.Member {
	return collective.Member{Name: "alice", Serial: "01", NotBefore: birth, NotAfter: birth.Add(7 * 24 * time.Hour)}
}

// With a coordinator that is away until the sixth day, a certificate of seven days is renewed on the sixth.
func TestRenewalOutlastsTheCoordinator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, self := renewal{jwt: aWeek}, week()
		back := birth.Add(time.Duration(rapid.IntRange(0, 7*24*60-60).Draw(t, "back after minutes")) * time.Minute)
		now, tries := birth, 0
		for {
			at := r.at(self, true)
			if at.Before(now) {
				at = now
			}
			if now = at; !now.Before(back) {
				break
			}
			tries++
			r.failed(self, now, 0, rapid.Float64Range(0, 1).Draw(t, "chance"))
		}
		if now.After(self.NotAfter) {
			t.Fatalf("it ended at %v, and would have been renewed at %v", self.NotAfter, now)
		}
		if late := now.Sub(back); tries > 0 && late > time.Hour {
			t.Fatalf("the coordinator was back for %v", late)
		}
		if tries > 7*24+100 {
			t.Fatalf("%d tries", tries)
		}
	})
}

func TestRenewalAtOnce(t *testing.T) {
	self, now := week(), birth.Add(time.Hour)
	for what, at := range map[string]time.Time{
		"ended or revoked": (&renewal{jwt: aWeek}).at(self, false),
		"no JWT":           (&renewal{needed: true, jwt: aWeek}).at(self, true),
	} {
		if at.After(now) {
			t.Errorf("%s: renewed at %v", what, at)
		}
	}
	r := renewal{jwt: aWeek}
	if at := r.at(self, true); at.Before(birth.Add(24*time.Hour)) || at.After(birth.Add(48*time.Hour)) {
		t.Errorf("a good certificate is renewed at %v", at)
	}
	other := self
	other.Name = "bob"
	if r.at(self, true).Equal(r.at(other, true)) {
		t.Error("two members renew in the same moment")
	}
}

// If the bus refuses this member, it asks for another JWT, and less and less often if that does not help.
func TestRenewalForTheBus(t *testing.T) {
	r := renewal{jwt: aWeek}
	self, now := week(), birth.Add(time.Hour)
	for i, want := range []time.Duration{0, time.Minute, 2 * time.Minute, 4 * time.Minute} {
		r.notLetIn(now)
		r.notLetIn(now) // it is refused at every attempt
		if got := later(now, r.at(self, true)).Sub(now); got != want {
			t.Errorf("the %d. time it is renewed after %v, want %v", i+1, got, want)
		}
		now = later(now, r.at(self, true))
		r.succeeded()
	}
	r.letIn()
	r.notLetIn(now)
	if got := r.at(self, true); got.After(now) {
		t.Errorf("renewed at %v", got)
	}
}

// A certificate that was renewed without us does not make up for a JWT that ends.
func TestRenewalOfTheJWT(t *testing.T) {
	r, self := renewal{jwt: aWeek}, week()
	self.NotBefore, self.NotAfter = birth.Add(6*24*time.Hour), birth.Add(13*24*time.Hour)
	if at := r.at(self, true); at.After(birth.Add(48 * time.Hour)) {
		t.Errorf("renewed at %v", at)
	}
}

// On another network a member tries again at once, unless a coordinator has set a time for the next attempt.
func TestRenewalHurries(t *testing.T) {
	self, now := week(), birth.Add(48*time.Hour)
	for after, want := range map[time.Duration]time.Time{0: now.Add(time.Second), time.Hour: now.Add(time.Hour)} {
		r := renewal{jwt: aWeek}
		r.failed(self, now, after, 1)
		r.hurry(now.Add(time.Second))
		if got := r.at(self, true); !got.Equal(want) {
			t.Errorf("told to wait %v: tried at %v, want %v", after, got, want)
		}
	}
}
