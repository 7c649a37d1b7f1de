package membership

import (
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
)

// What bob measured reaches alice in his record, which he has signed.
func TestMeasuredTravels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	bob := w.join("bob", hour).start()
	want := []directory.Measurement{{Waypoint: "carol", Loss: 1, Goodput: 4}}
	bob.Measured(want)
	bob.serves("198.51.100.7")
	var got *directory.Verified
	alice.await("told", func(State) bool {
		err := alice.Directory(t.Context(), func(d *directory.Directory) { got, _ = d.Get("bob") })
		return err == nil && got != nil && slices.Equal(got.Record.Measured, want)
	})
	if got.Holder.Name != "bob" || got.Holder.Key != bob.id.Self().Key {
		t.Errorf("signed by %+v", got.Holder)
	}
}

// What was measured is published at most once an hour, and again before it is too old. A record without it is not.
func TestMeasuredIsPublishedSeldom(t *testing.T) {
	self, now := week(), birth.Add(time.Hour)
	self.NotAfter = birth.Add(365 * 24 * time.Hour)
	bad := []directory.Measurement{{Waypoint: "carol", Loss: 4}}
	good := []directory.Measurement{{Waypoint: "carol", Loss: 1}}
	published := func(measured func(minute int) []directory.Measurement) (n int) {
		var p publication
		var has *directory.Verified
		at := now
		for minute := range 48 * 60 {
			r := anOffer(1).record(self, has, at).WithMeasured(measured(minute))
			if !at.Before(p.at(r, self, has, at)) {
				p.succeeded(r, self, has, at)
				has = echo(r, self)
				n++
			}
			at = at.Add(time.Minute)
		}
		return n
	}
	for _, test := range []struct {
		name        string
		measured    func(minute int) []directory.Measurement
		least, most int
	}{
		{"nothing", func(int) []directory.Measurement { return nil }, 1, 1},
		{"always the same", func(int) []directory.Measurement { return good }, 4, 5},
		{"something else each minute", func(m int) []directory.Measurement {
			if m%2 == 0 {
				return bad
			}
			return good
		}, 24, 49},
		{"once", func(m int) []directory.Measurement {
			if m == 0 {
				return good
			}
			return nil
		}, 2, 2},
	} {
		if n := published(test.measured); n < test.least || n > test.most {
			t.Errorf("%s: published %d times in two days, want %d to %d", test.name, n, test.least, test.most)
		}
	}
}
