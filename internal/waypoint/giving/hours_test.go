package giving

import (
	"testing"
	"time"
	_ "time/tzdata" // zones that change their clocks, on every machine

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/units"
)

func zone(t rapid.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func hours(t testing.TB, words ...string) Hours {
	t.Helper()
	var h Hours
	for _, word := range words {
		var w units.Window
		if err := w.UnmarshalText([]byte(word)); err != nil {
			t.Fatal(err)
		}
		h = append(h, w)
	}
	return h
}

// In Berlin, clocks go from 02:00 to 03:00 on 29 March 2026, and from 03:00 to 02:00 on 25 October.
func TestHours(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, test := range []struct {
		name  string
		hours []string
		at    string
		open  bool
		next  string // empty: never
	}{
		{"always", nil, "2026-10-05 12:00:00 +0200", true, ""},
		{"the whole week", []string{"00:00-24:00"}, "2026-10-05 12:00:00 +0200", true, ""},
		{"whole days, one by one", []string{"mon-fri 00:00-24:00", "sat-sun 00:00-24:00"}, "2026-10-05 12:00:00 +0200", true, ""},
		{"evening", []string{"22:00-07:00"}, "2026-10-05 21:59:59 +0200", false, "2026-10-05 22:00:00 +0200"},
		{"over midnight", []string{"22:00-07:00"}, "2026-10-05 23:30:00 +0200", true, "2026-10-06 07:00:00 +0200"},
		{"after midnight", []string{"22:00-07:00"}, "2026-10-06 06:59:00 +0200", true, "2026-10-06 07:00:00 +0200"},
		{"touching", []string{"22:00-24:00", "00:00-07:00"}, "2026-10-05 23:30:00 +0200", true, "2026-10-06 07:00:00 +0200"},
		{"overlapping", []string{"20:00-23:00", "22:00-01:00"}, "2026-10-05 21:00:00 +0200", true, "2026-10-06 01:00:00 +0200"},
		{"another day", []string{"sat 00:00-24:00"}, "2026-10-05 12:00:00 +0200", false, "2026-10-10 00:00:00 +0200"},
		{"until the end of the day", []string{"sat 00:00-24:00"}, "2026-10-10 12:00:00 +0200", true, "2026-10-11 00:00:00 +0200"},
		{"the night that is an hour shorter", []string{"22:00-07:00"}, "2026-03-28 23:00:00 +0100", true, "2026-03-29 07:00:00 +0200"},
		{"the night that is an hour longer", []string{"22:00-07:00"}, "2026-10-24 23:00:00 +0200", true, "2026-10-25 07:00:00 +0100"},
		{"an hour that does not come", []string{"sun 02:00-03:00"}, "2026-03-29 01:00:00 +0100", false, "2026-04-05 02:00:00 +0200"},
		{"a beginning that does not come", []string{"02:30-04:00"}, "2026-03-29 01:00:00 +0100", false, "2026-03-29 03:00:00 +0200"},
		{"an end that does not come", []string{"01:00-02:30"}, "2026-03-29 01:30:00 +0100", true, "2026-03-29 03:00:00 +0200"},
		{"an hour that comes twice", []string{"02:00-03:00"}, "2026-10-25 02:00:00 +0200", true, "2026-10-25 03:00:00 +0100"},
		{"an end that comes twice", []string{"01:00-02:30"}, "2026-10-25 01:30:00 +0200", true, "2026-10-25 02:30:00 +0200"},
		{"and once more", []string{"01:00-02:30"}, "2026-10-25 02:45:00 +0200", false, "2026-10-25 02:00:00 +0100"},
	} {
		t.Run(test.name, func(t *testing.T) {
			const form = "2006-01-02 15:04:05 -0700"
			at, err := time.Parse(form, test.at)
			if err != nil {
				t.Fatal(err)
			}
			at = at.In(berlin)
			h := hours(t, test.hours...)
			if got := h.Open(at); got != test.open {
				t.Errorf("open: %v", got)
			}
			next, ok := h.Next(at)
			if got := next.Format(form); ok != (test.next != "") || ok && got != test.next {
				t.Errorf("next: %s, %v; want %s", got, ok, test.next)
			}
		})
	}
}

func drawTime(t *rapid.T) time.Time {
	// Kiritimati has no changes, Lord Howe changes by half an hour, Cairo at midnight.
	name := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Pacific/Kiritimati"}).Draw(t, "zone")
	year := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	return time.Unix(year+rapid.Int64Range(0, 2*366*24*3600).Draw(t, "second"), rapid.Int64Range(0, 1e9-1).Draw(t, "ns")).In(zone(t, name))
}

func drawHours(t *rapid.T) (h Hours) {
	for range rapid.IntRange(0, 4).Draw(t, "windows") {
		w := units.Window{
			First: time.Weekday(rapid.IntRange(0, 6).Draw(t, "first")), Last: time.Weekday(rapid.IntRange(0, 6).Draw(t, "last")),
			From: rapid.IntRange(0, 23*60+59).Draw(t, "from"), To: rapid.IntRange(0, 24*60).Draw(t, "to"),
		}
		if w.From == w.To {
			w.To++
		}
		h = append(h, w)
	}
	return h
}

// Until Next nothing changes, and then it does. Without a Next, nothing changes for weeks.
func TestNextIsTheFirstChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, at := drawHours(t), drawTime(t)
		open := h.Open(at)
		next, ok := h.Next(at)
		end := next
		if !ok {
			end = at.Add(3 * 7 * 24 * time.Hour)
		}
		if ok && (!next.After(at) || h.Open(next) == open) {
			t.Fatalf("at %v open: %v; at %v too", at, open, next)
		}
		for minute := at.Truncate(time.Minute).Add(time.Minute); minute.Before(end); minute = minute.Add(time.Minute) {
			if h.Open(minute) != open {
				t.Fatalf("at %v open: %v; not so at %v, before %v", at, open, minute, next)
			}
		}
	})
}
