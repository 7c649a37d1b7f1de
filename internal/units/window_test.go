package units

import (
	"strings"
	"testing"
	"time"
)

func TestQuota(t *testing.T) {
	table(t, []row[Quota]{
		{"500GB", 500e9, "500GB"},
		{"1.5TB", 15e11, "1500GB"},
		{"2 TiB", 2 << 40, "2TiB"},
		{"unlimited", 0, "unlimited"},
	}, []string{"", "500", "0GB", "-1GB", "5PB", "10mbit"})
	if err := new(Quota).UnmarshalText([]byte("0GB")); err == nil || !strings.HasPrefix(err.Error(), `"0GB" is zero: write an amount such as`) {
		t.Errorf("0GB: %v", err)
	}
}

func TestWindow(t *testing.T) {
	table(t, []row[Window]{
		{"22:00-07:00", Window{time.Monday, time.Sunday, 22 * 60, 7 * 60}, "22:00-07:00"},
		{"sat 00:00-24:00", Window{time.Saturday, time.Saturday, 0, 24 * 60}, "sat 00:00-24:00"},
		{" Mon-Fri  18:00 - 23:30 ", Window{time.Monday, time.Friday, 18 * 60, 23*60 + 30}, "mon-fri 18:00-23:30"},
		{"fri-mon 23:59-00:00", Window{time.Friday, time.Monday, 23*60 + 59, 0}, "fri-mon 23:59-00:00"},
		{"wed-tue 08:00-09:00", Window{time.Wednesday, time.Tuesday, 8 * 60, 9 * 60}, "08:00-09:00"},
	}, []string{
		"", "22-7", "22:00", "22:00-7:00", "24:00-07:00", "22:00-24:01", "12:60-13:00", "10:00-10:00",
		"sat", "samstag 10:00-11:00", "xyz 10:00-11:00", "mon-xyz 10:00-11:00", "mon, tue 10:00-11:00", "10:00-11:00 mon",
	})
}

func TestWindowCovers(t *testing.T) {
	night := Window{time.Friday, time.Saturday, 22 * 60, 7 * 60}
	day := Window{time.Sunday, time.Sunday, 8 * 60, 24 * 60}
	for _, test := range []struct {
		w      Window
		day    time.Weekday
		minute int
		want   bool
	}{
		{night, time.Friday, 22*60 - 1, false},
		{night, time.Friday, 22 * 60, true},
		{night, time.Friday, 6 * 60, false}, // it begins on Friday evening
		{night, time.Saturday, 6 * 60, true},
		{night, time.Sunday, 7*60 - 1, true}, // which began on Saturday
		{night, time.Sunday, 7 * 60, false},
		{night, time.Sunday, 22 * 60, false},
		{day, time.Sunday, 24*60 - 1, true},
		{day, time.Monday, 0, false},
	} {
		if got := test.w.Covers(test.day, test.minute); got != test.want {
			t.Errorf("%v on %v at minute %d: %v", test.w, test.day, test.minute, got)
		}
	}
}
