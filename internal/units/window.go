package units

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Window is a part of the day on certain days of the week, by the local clock.
type Window struct {
	First, Last time.Weekday // the days on which it begins; Last may be before First in the week
	From, To    int          // minutes of the day; if To is before From, it ends on the next day
}

const (
	dayMinutes = 24 * 60
	windowForm = `a time of the day (00:00 to 24:00) such as "22:00-07:00", "sat 00:00-24:00" or "mon-fri 18:00-23:30" (mon, tue, wed, thu, fri, sat, sun)`
)

var (
	window = regexp.MustCompile(`^(?:([a-z]{3})(?:-([a-z]{3}))? +)?([0-9]{2}):([0-9]{2}) ?- ?([0-9]{2}):([0-9]{2})$`)
	days   = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as time.Weekday counts
)

// Begins reports whether the window begins on the day.
func (w Window) Begins(day time.Weekday) bool {
	return (day-w.First+7)%7 <= (w.Last-w.First+7)%7
}

// Covers reports whether the window is open on the day at this minute.
func (w Window) Covers(day time.Weekday, minute int) bool {
	if w.From < w.To {
		return w.Begins(day) && w.From <= minute && minute < w.To
	}
	return w.Begins(day) && w.From <= minute || w.Begins((day+6)%7) && minute < w.To
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Window) UnmarshalText(text []byte) error {
	bad := fmt.Errorf("%q is not %s", text, windowForm)
	m := window.FindStringSubmatch(strings.ToLower(strings.TrimSpace(string(text))))
	if m == nil {
		return bad
	}
	read := Window{First: time.Monday, Last: time.Sunday}
	if m[1] != "" {
		first, last := slices.Index(days, m[1]), slices.Index(days, m[1])
		if m[2] != "" {
			last = slices.Index(days, m[2])
		}
		if first < 0 || last < 0 {
			return bad
		}
		read.First, read.Last = time.Weekday(first), time.Weekday(last)
	}
	var fromOK, toOK bool
	read.From, fromOK = minuteOfDay(m[3], m[4])
	read.To, toOK = minuteOfDay(m[5], m[6])
	switch {
	case !fromOK || !toOK || read.From == dayMinutes:
		return bad
	case read.From == read.To:
		return fmt.Errorf("%q is not of any length (the whole day is 00:00-24:00); write %s", text, windowForm)
	}
	*w = read
	return nil
}

func minuteOfDay(hour, minute string) (int, bool) {
	h, _ := strconv.Atoi(hour) // two digits each
	m, _ := strconv.Atoi(minute)
	return 60*h + m, m < 60 && 60*h+m <= dayMinutes
}

func (w Window) String() string {
	clock := fmt.Sprintf("%02d:%02d-%02d:%02d", w.From/60, w.From%60, w.To/60, w.To%60)
	switch {
	case (w.Last-w.First+7)%7 == 6:
		return clock
	case w.First == w.Last:
		return days[w.First] + " " + clock
	}
	return days[w.First] + "-" + days[w.Last] + " " + clock
}

// MarshalText implements encoding.TextMarshaler.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Form describes the syntax of a Window.
func (Window) Form() string { return windowForm }
