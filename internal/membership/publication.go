package membership

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
)

// Offer is the part of this host's record that the agent sets. The other parts come from its certificate.
type Offer struct {
	// Addresses and Port are for sessions with this host; none: it accepts none.
	Addresses []netip.Addr
	Port      uint16
	Punch     bool // sessions reach it only from addresses to which it has sent
	Roles     []string
	Kinds     []string // of detours
	Region    string
	Key       directory.WireGuardKey
}

const (
	// recordLife bounds the validity of a record.
	recordLife = 14 * 24 * time.Hour
	// echoWithin is the time after which a published record that is not in the copy of the directory is published again. It
	// doubles each time.
	echoWithin  = time.Minute
	longestEcho = time.Hour

	// Measurements are published at once if the record has none. After that they are published at most every measuredEvery,
	// because each record goes to all members, and again after measuredLasts, before they are too old to count.
	measuredEvery = time.Hour
	measuredLasts = 12 * time.Hour

	firstPublishPause = 2 * time.Second
	lastPublishPause  = 10 * time.Minute
)

// publication decides when this host's record is published: when it differs from the one in the directory, or that one
// has another certificate or is half over.
type publication struct {
	taken    *directory.Record // the last one that a coordinator has taken; nil: none since the start
	serial   string            // of its certificate
	takenAt  time.Time
	unheard  int // number of taken records in a row that did not come back
	failures int
	notUntil time.Time
}

// record returns the record to publish. has is the one in the directory, which may be nil.
func (o Offer) record(self collective.Member, has *directory.Verified, now time.Time) directory.Record {
	r := directory.Record{
		Collective: self.Collective, Name: self.Name, Issued: now, Expires: now.Add(recordLife),
		Addresses: o.Addresses, Port: o.Port, Punch: o.Punch, Roles: o.Roles, Kinds: o.Kinds,
		Region: o.Region, Key: o.Key, Subnet: self.Subnet,
	}
	if len(r.Addresses) == 0 {
		r.Port, r.Punch = 0, false
	}
	if self.NotAfter.Before(r.Expires) {
		r.Expires = self.NotAfter
	}
	var last uint64
	if has != nil {
		last = has.Record.Sequence
	}
	r.Sequence = directory.NextSequence(last, now)
	return r
}

// at returns the time to publish want. has is the record in the directory, which may be nil.
func (p *publication) at(want directory.Record, self collective.Member, has *directory.Verified, now time.Time) time.Time {
	due := now
	if has != nil && has.Holder.Serial == self.Serial && has.Record.SameButTime(want) {
		due = earlier(halfOver(has.Record, self), measuredDue(want, has.Record))
	}
	if p.onItsWay(want, self, has) {
		due = later(due, p.takenAt.Add(min(echoWithin<<min(p.unheard, 10), longestEcho)))
	}
	return later(due, p.notUntil)
}

// onItsWay reports whether a coordinator has taken the record and the directory does not have it yet.
func (p *publication) onItsWay(want directory.Record, self collective.Member, has *directory.Verified) bool {
	return p.taken != nil && p.serial == self.Serial && p.taken.SameButTime(want) &&
		(has == nil || has.Record.Sequence < p.taken.Sequence)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// halfOver returns the time when a record must be renewed. A record that ends with its certificate is renewed with it.
func halfOver(r directory.Record, self collective.Member) time.Time {
	if !r.Expires.Before(self.NotAfter.Truncate(time.Second)) {
		return self.NotAfter
	}
	return r.Issued.Add(r.Expires.Sub(r.Issued) / 2)
}

// measuredDue returns the time when a record must be published because of its measurements.
func measuredDue(want, has directory.Record) time.Time {
	switch {
	case len(want.Measured) > 0 && len(has.Measured) == 0:
		return has.Issued
	case len(want.Measured) > 0 && !slices.Equal(want.Measured, has.Measured):
		return has.Issued.Add(measuredEvery)
	case len(want.Measured)+len(has.Measured) > 0:
		return has.Issued.Add(measuredLasts)
	}
	return has.Expires
}

// succeeded records that a coordinator has taken the record, while the directory had this one.
func (p *publication) succeeded(r directory.Record, self collective.Member, has *directory.Verified, now time.Time) {
	unheard := 0
	if p.onItsWay(r, self, has) {
		unheard = p.unheard + 1
	}
	*p = publication{taken: &r, serial: self.Serial, takenAt: now, unheard: unheard}
}

// failed records that no coordinator has taken the record. Chance is a random number from 0 to 1.
func (p *publication) failed(now time.Time, chance float64) {
	pause := min(firstPublishPause<<min(p.failures, 12), lastPublishPause)
	p.failures++
	p.notUntil = now.Add(pause/2 + time.Duration(chance*float64(pause/2)))
}
