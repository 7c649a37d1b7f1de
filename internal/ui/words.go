package ui

import (
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// The functions of this file return the words of `dcol status`, for other views of the same state.

// Rate returns a rate in bits per second, such as 18.7 Mbit/s.
func Rate(bps float64) string { return rate(bps) }

// Bytes returns a number of bytes, such as 3.2 MB.
func Bytes(n uint64) string { return bytes(n) }

// Age returns the time since since, such as 90 s or 3 h, or nothing if since is zero.
func Age(now, since time.Time) string { return age(now, since) }

// RoundTrip returns a round-trip time in milliseconds, such as 12.3 ms, or a dash if it is 0, which means unknown.
func RoundTrip(ms float64) string { return trip(ms) }

// PathName names the path of a subflow: direct, or via a waypoint.
func PathName(s api.Subflow) string { return pathName(s) }

// Ready lists the kinds of detours that are ready at a waypoint, or returns a dash.
func Ready(w api.Waypoint) string { return ready(w) }

// WhyClosed returns the reason why a waypoint is closed, and until when, if that is known.
func WhyClosed(g api.Given) string { return whyClosed(g) }

// Choices returns lines about what decides which waypoints and converters are used: the user's choices and budgets.
func Choices(u *api.Using, now time.Time) []string {
	return linesOf(func(p *printer) { p.choices(u, now) })
}

// Terms returns lines about what a waypoint offers: whether it is open, and its limits, also those of single members.
func Terms(g api.Given) []string {
	return linesOf(func(p *printer) {
		p.linef("%s", standing(g))
		p.terms("", g)
	})
}

// linesOf returns the lines that write prints.
func linesOf(write func(*printer)) []string {
	var b strings.Builder
	write(&printer{w: &b})
	return strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' })
}

// Number returns a number with the word for one or for several.
func Number(n int, one, several string) string { return plural(n, one, several) }
