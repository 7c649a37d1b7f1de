package giving

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestStand(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 10, day, hour, minute, 0, 0, berlin) }
	november := time.Date(2026, 11, 1, 0, 0, 0, 0, berlin)
	nights := hours(t, "22:00-07:00")
	for _, test := range []struct {
		name  string
		terms Terms
		now   time.Time
		off   *Off
		used  uint64
		want  Standing
	}{
		{"nothing said", Terms{}, at(5, 12, 0), nil, 1 << 40, Standing{}},
		{"within all", Terms{nights, 100}, at(5, 23, 0), nil, 99, Standing{}},
		{"by day", Terms{nights, 100}, at(5, 12, 0), nil, 99, Standing{OutsideHours, at(5, 22, 0)}},
		{"used up", Terms{Quota: 100}, at(5, 12, 0), nil, 100, Standing{QuotaUsed, november}},
		{"used up, and it begins by night", Terms{hours(t, "06:00-07:00"), 100}, at(5, 6, 30), nil, 100, Standing{QuotaUsed, november.Add(6 * time.Hour)}},
		{"off", Terms{}, at(5, 12, 0), &Off{}, 0, Standing{Cause: SwitchedOff}},
		{"off for a while", Terms{}, at(5, 12, 0), &Off{Until: at(5, 14, 0)}, 0, Standing{SwitchedOff, at(5, 14, 0)}},
		{"off for a while, and then it is day", Terms{Hours: nights}, at(5, 6, 0), &Off{Until: at(5, 8, 0)}, 0, Standing{SwitchedOff, at(5, 22, 0)}},
		{"off no longer", Terms{}, at(5, 14, 0), &Off{Until: at(5, 14, 0)}, 0, Standing{}},
		{"off, used up and by day", Terms{nights, 1}, at(5, 12, 0), &Off{Until: at(6, 12, 0)}, 1, Standing{SwitchedOff, november}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.terms.Stand(test.now, test.off, test.used); !got.Equal(test.want) {
				t.Errorf("%v until %v, want %v until %v", got.Cause, got.Until, test.want.Cause, test.want.Until)
			}
		})
	}
}

// The published state is true: the waypoint gives at Until, and at no earlier minute.
func TestUntilHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := drawTime(t)
		terms := Terms{Hours: drawHours(t), Quota: rapid.Uint64Range(0, 2).Draw(t, "quota")}
		used := rapid.Uint64Range(0, 2).Draw(t, "used")
		var off *Off
		if rapid.Bool().Draw(t, "off") {
			off = &Off{Until: now.Add(time.Duration(rapid.IntRange(-3000, 3000).Draw(t, "until")) * time.Minute)}
		}
		month := MonthOf(now)
		stand := func(at time.Time) Standing {
			if MonthOf(at) != month {
				return terms.Stand(at, off, 0)
			}
			return terms.Stand(at, off, used)
		}
		s := stand(now)
		if !s.Closed() {
			return
		}
		if s.Until.IsZero() || stand(s.Until).Closed() {
			t.Fatalf("%v until %v, and then %v", s.Cause, s.Until, stand(s.Until))
		}
		for at := now; at.Before(s.Until); at = at.Add(time.Minute) {
			if !stand(at).Closed() {
				t.Fatalf("%v until %v, but at %v it gives", s.Cause, s.Until, at)
			}
		}
	})
}

func TestLedger(t *testing.T) {
	var l Ledger
	if l.Turn("2026-10"); l.Used() != 0 {
		t.Errorf("begins with %d", l.Used())
	}
	l.Count(100)
	l.Count(70) // a counter that somebody has set back
	if l.Used() != 100 {
		t.Errorf("used %d", l.Used())
	}
	if l.Turn("2026-11"); l.Used() != 0 {
		t.Errorf("another month begins with %d", l.Used())
	}
	l.Count(7)
	if l.Turn("2026-10"); l.Used() != 100 {
		t.Errorf("a clock that is put back finds %d", l.Used())
	}
	// Months are forgotten, but never the one that counts.
	for year := range 20 {
		l.Turn(MonthOf(time.Date(2030+year, 1, 1, 0, 0, 0, 0, time.UTC)))
	}
	l.Turn("1970-01")
	l.Count(5)
	if len(l.Bytes) > ledgerMonths+1 || l.Used() != 5 {
		t.Errorf("%d months, used %d", len(l.Bytes), l.Used())
	}
}
