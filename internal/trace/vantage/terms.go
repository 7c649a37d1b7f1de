package vantage

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// Terms bound what a member traces for others.
type Terms struct {
	Rate         float64        // packets per second
	Destinations int            // in a day, for each member
	Hours        []units.Window // by the local clock; none: always
	// Permit returns why an address is not probed, nil if it may be.
	Permit func(netip.Addr) error
}

// open reports whether the hours include a time.
func (t Terms) open(now time.Time) bool {
	for _, w := range t.Hours {
		if w.Covers(now.Weekday(), 60*now.Hour()+now.Minute()) {
			return true
		}
	}
	return len(t.Hours) == 0
}

// Ledger counts what was traced for members.
type Ledger struct {
	mu      sync.Mutex
	day     int // of the year
	traced  map[string]int
	running string // the member for whom a campaign runs
}

// admit returns how many of a member's destinations are taken now, at least one. done must follow if there is no error.
func (l *Ledger) admit(t Terms, member string, destinations int, now time.Time) (taken int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.traced == nil || l.day != now.YearDay() {
		l.day, l.traced = now.YearDay(), map[string]int{}
	}
	left := t.Destinations - l.traced[member]
	switch {
	case !t.open(now):
		return 0, fmt.Errorf("it traces for others at these hours of its clock only: %v", t.Hours)
	case l.running != "":
		return 0, fmt.Errorf("it traces for %s now, and runs one campaign at a time: try again later", l.running)
	case left <= 0:
		return 0, fmt.Errorf("it traces %d destinations a day for a member, which are used up: try again tomorrow", t.Destinations)
	}
	taken = min(destinations, left)
	l.traced[member] += taken
	l.running = member
	return taken, nil
}

// done ends the campaign that admit has admitted.
func (l *Ledger) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = ""
}
