package units

import (
	"encoding"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRate(t *testing.T) {
	table(t, []row[Rate]{
		{"10mbit", 10e6, "10mbit"},
		{"1.5gbit", 1.5e9, "1500mbit"},
		{"1000kbit", 1e6, "1mbit"},
		{"9600bit", 9600, "9600bit"},
		{"0.5mbit", 5e5, "500kbit"},
		{" 10 Mbit ", 10e6, "10mbit"},
		{"10MBIT", 10e6, "10mbit"},
		{"unlimited", 0, "unlimited"},
		{"Unlimited", 0, "unlimited"},
	}, []string{
		"", "10", "mbit", "0mbit", "0.4bit", "-1mbit", "+1mbit", "1e3kbit", "10mb", "10 m bit", "10mbit/s", "10,5mbit",
		".5mbit", "1.mbit", "0x10mbit", "NaNmbit", "10000000gbit", strings.Repeat("9", 400) + "bit",
	})
	if got := Rate(2.5e6).Mbps(); got != 2.5 {
		t.Errorf("2.5mbit is %v Mbit/s", got)
	}
}

func TestSize(t *testing.T) {
	table(t, []row[Size]{
		{"20MB", 20e6, "20MB"},
		{"64KiB", 65536, "64KiB"},
		{"1GiB", 1 << 30, "1GiB"},
		{"1.5 kb", 1500, "1500B"},
		{"3000000KB", 3e9, "3GB"},
		{"1b", 1, "1B"},
	}, []string{"", "20", "MB", "0B", "-1B", "20MBit", "64K", "1e6B", "10000000GB"})
}

func TestDuration(t *testing.T) {
	table(t, []row[Duration]{
		{"5ms", Duration(5 * time.Millisecond), "5ms"},
		{"1.5s", Duration(1500 * time.Millisecond), "1.5s"},
		{"90m", Duration(90 * time.Minute), "1h30m"},
		{"60m", Duration(time.Hour), "1h"},
		{"10m", Duration(10 * time.Minute), "10m"},
		{"3605s", Duration(time.Hour + 5*time.Second), "1h0m5s"},
		{"250us", Duration(250 * time.Microsecond), "250µs"},
		{" 1h 30m ", Duration(90 * time.Minute), "1h30m"},
		{"0s", 0, "0s"},
		{"0", 0, "0s"},
	}, []string{"", "5", "ms", "-5ms", "5 minutes", "1d", "NaNs", "9999999999h"})
	if d := Duration(1500 * time.Millisecond); d.Std() != 1500*time.Millisecond || d.Seconds() != 1.5 {
		t.Errorf("%v is %v, %v s", d, d.Std(), d.Seconds())
	}
}

func TestShare(t *testing.T) {
	table(t, []row[Share]{
		{"1%", 0.01, "1%"},
		{"0.5%", 0.005, "0.5%"},
		{"0%", 0, "0%"},
		{"100 %", 1, "100%"},
		{"12.5 %", 0.125, "12.5%"},
	}, []string{"", "1", "%", "-1%", "-0%", "+1%", "100.1%", "NaN%", "Inf%", "1e1%", "0x1p3%", "1 percent", "1%%"})
}

type row[T any] struct {
	text  string
	value T
	again string // how it is printed
}

// quantityOf is what the kinds have in common.
type quantityOf[T any] interface {
	*T
	encoding.TextUnmarshaler
}

func table[T interface {
	comparable
	fmt.Stringer
	Form() string
	encoding.TextMarshaler
}, P quantityOf[T]](t *testing.T, good []row[T], bad []string) {
	t.Helper()
	for _, test := range good {
		var got T
		if err := P(&got).UnmarshalText([]byte(test.text)); err != nil {
			t.Errorf("%q: %v", test.text, err)
			continue
		}
		if got != test.value {
			t.Errorf("%q is read as %v, want %v", test.text, got, test.value)
		}
		if marshalled, err := got.MarshalText(); got.String() != test.again || string(marshalled) != test.again || err != nil {
			t.Errorf("%q is printed as %v and written as %s, %v; want %s", test.text, got, marshalled, err, test.again)
		}
	}
	for _, text := range bad {
		var zero, got T
		err := P(&got).UnmarshalText([]byte(text))
		if err == nil || got != zero {
			t.Errorf("%q was taken for %v", text, got)
			continue
		}
		said := strings.TrimPrefix(err.Error(), strconv.Quote(text))
		if !strings.HasPrefix(said, " is not ") && !strings.HasPrefix(said, " is zero: write ") || !strings.HasSuffix(said, zero.Form()) {
			t.Errorf("%q: the error does not tell what it should look like: %v", text, err)
		}
	}
}

// What is printed is read back as the same value.
func TestRoundTrip(t *testing.T) {
	whole := rapid.OneOf(rapid.Int64Range(1, 1e6), rapid.Map(rapid.Int64Range(1, 1<<20), func(n int64) int64 { return n * 1000 }),
		rapid.Map(rapid.Int64Range(1, 1<<20), func(n int64) int64 { return n << 20 }), rapid.Int64Range(1, 1<<53-1))
	rapid.Check(t, func(t *rapid.T) {
		back(t, Rate(rapid.OneOf(rapid.Just(int64(0)), whole).Draw(t, "rate")))
		back(t, Size(whole.Draw(t, "size")))
		back(t, Quota(rapid.OneOf(rapid.Just(int64(0)), whole).Draw(t, "quota")))
		w := Window{
			First: time.Weekday(rapid.IntRange(0, 6).Draw(t, "first")), Last: time.Weekday(rapid.IntRange(0, 6).Draw(t, "last")),
			From: rapid.IntRange(0, dayMinutes-1).Draw(t, "from"), To: rapid.IntRange(0, dayMinutes).Draw(t, "to"),
		}
		if (w.Last+1)%7 == w.First { // every day, which is written without days
			w.First, w.Last = time.Monday, time.Sunday
		}
		if w.From != w.To {
			back(t, w)
		}
		back(t, Duration(rapid.OneOf(whole, rapid.Int64Range(0, math.MaxInt64)).Draw(t, "duration")))
		// A share has six places after the point, of the per cent.
		back(t, Share(float64(rapid.IntRange(0, 1e8).Draw(t, "share"))/1e6/100))
	})
}

func back[T interface {
	comparable
	fmt.Stringer
}, P quantityOf[T]](t *rapid.T, v T) {
	var got T
	if err := P(&got).UnmarshalText([]byte(v.String())); err != nil || got != v {
		t.Fatalf("%v is read back as %v, %v", v, got, err)
	}
}

// Whatever is accepted is in range, and printing it settles after one round.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"10mbit", "unlimited", "64KiB", "1.5 GB", "5ms", "1h30m", "0.5%", "100 %", "-1", "1e3bit", "0x1p3%", "22:00-07:00", "sat-sun 00:00-24:00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r Rate
		if r.UnmarshalText([]byte(text)) == nil {
			settles(t, r, r >= 0 && r < 1<<53)
		}
		var s Size
		if s.UnmarshalText([]byte(text)) == nil {
			settles(t, s, s > 0 && s < 1<<53)
		}
		var q Quota
		if q.UnmarshalText([]byte(text)) == nil {
			settles(t, q, q >= 0 && q < 1<<53)
		}
		var w Window
		if w.UnmarshalText([]byte(text)) == nil {
			settles(t, w, w.From >= 0 && w.From < dayMinutes && w.To >= 0 && w.To <= dayMinutes && w.From != w.To)
		}
		var d Duration
		if d.UnmarshalText([]byte(text)) == nil {
			settles(t, d, d >= 0)
		}
		var p Share
		if p.UnmarshalText([]byte(text)) == nil {
			settles(t, p, p >= 0 && p <= 1 && !math.Signbit(float64(p)))
		}
	})
}

func settles[T fmt.Stringer, P quantityOf[T]](t *testing.T, v T, inRange bool) {
	t.Helper()
	if !inRange {
		t.Errorf("%v is out of range", v)
	}
	var again T
	if err := P(&again).UnmarshalText([]byte(v.String())); err != nil || again.String() != v.String() {
		t.Errorf("%v is read back as %v, %v", v, again, err)
	}
}
