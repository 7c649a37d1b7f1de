package lease

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// KeysPerSession is the number of a session's keys that are valid at once. The previous key stays valid for SYNs under way.
const KeysPerSession = 2

// AdoptedGrace is the time in which members can reconnect after an agent was killed.
const AdoptedGrace = time.Minute

// admission lets a caller send SYNs that name their server, until it expires or the caller's session ends.
type admission struct {
	Caller
	session    uint64 // 0: of an earlier agent
	by         *attribution.Session
	key        inband.Key
	clientPort bool // no NAT rewrites the client's port, so that it is authenticated, too
	expires    time.Time
}

// admissions mirrors the in-band admissions in the kernel's table, by address, the oldest first.
type admissions map[netip.Addr][]*admission

func (x admissions) add(a *admission) { x[a.Addr] = append(x[a.Addr], a) }

// take removes the admissions for which which returns true, and returns their callers with one of their sessions.
func (x admissions) take(which func(*admission) bool) map[Caller]*attribution.Session {
	touched := make(map[Caller]*attribution.Session)
	for addr, list := range x {
		for _, a := range list {
			if which(a) {
				touched[a.Caller] = a.by
			}
		}
		if x[addr] = slices.DeleteFunc(list, which); len(x[addr]) == 0 {
			delete(x, addr)
		}
	}
	return touched
}

// superseded returns the admissions of a session that the next admission of this session replaces.
func (x admissions) superseded(addr netip.Addr, session uint64) []*admission {
	var list []*admission
	for _, a := range x[addr] {
		if a.session == session {
			list = append(list, a)
		}
	}
	return list[:max(0, len(list)-(KeysPerSession-1))]
}

// by returns the session of the newest admission of a caller.
func (x admissions) by(id rules.MemberID, addr netip.Addr) (newest *attribution.Session) {
	for _, a := range x[addr] {
		if a.Member.ID == id && a.by != nil {
			newest = a.by
		}
	}
	return newest
}

// until returns the end of the last admission of a caller; zero if it has none.
func (x admissions) until(c Caller) (end time.Time) {
	for _, a := range x[c.Addr] {
		if a.Member == c.Member && a.expires.After(end) {
			end = a.expires
		}
	}
	return end
}

// rule returns the single entry of the kernel's table for all admissions of a caller.
func (x admissions) rule(c Caller, now time.Time) rules.Admission {
	return rules.Admission{Addr: c.Addr, Kind: wire.InBand, Member: c.Member.ID, Left: x.until(c).Sub(now)}
}

// callers returns those that have admissions.
func (x admissions) callers() map[Caller]bool {
	all := make(map[Caller]bool)
	for _, list := range x {
		for _, a := range list {
			all[a.Caller] = true
		}
	}
	return all
}

// Keys returns the keys of an address for eBPF. Admissions of an earlier agent may have none.
func (l *Leases) Keys(addr netip.Addr) []inband.Slot {
	var slots []inband.Slot
	for _, a := range l.admissions[addr] {
		if a.key != (inband.Key{}) {
			slots = append(slots, inband.Slot{Key: a.key, Mark: l.inBandMark(a.Member), ClientPort: a.clientPort, Expires: a.expires})
		}
	}
	return slots
}

// Admits reports whether an address is admitted to in-band detours.
func (l *Leases) Admits(addr netip.Addr) bool { return len(l.admissions[addr]) > 0 }

func (l *Leases) inBandMark(m *Member) uint32 { return l.terms.Marks.Mark(m.ID, wire.InBand) }

// Admitting is a grant to write to the kernel: leases that end before it, the change of the table, and then new keys. Call
// Written or Undo afterwards.
type Admitting struct {
	Before Ending
	Change rules.Change
	Keys   []netip.Addr // addresses whose keys have changed

	member  *Member
	entries []attribution.Entry
	undo    func() Ending
}

// Written records that the kernel's table has the change.
func (a *Admitting) Written() { a.member.saved = true }

// Granted counts the grant and returns the lines for the log.
func (a *Admitting) Granted() []attribution.Entry {
	a.member.Granted++
	return a.entries
}

// Undo reverts the grant, because it was not written.
func (a *Admitting) Undo() Ending { return a.undo() }

func (a *Admitting) admit(r rules.Admission) {
	a.Change.Admit = append(a.Change.Admit, r)
	if !a.member.saved {
		a.Change.Members = []rules.Member{a.member.Member}
	}
}

// InBandRequest is a request for admission to in-band detours.
type InBandRequest struct {
	Request
	ClientPort bool       // no NAT rewrites the client's port
	Key        inband.Key // a new key; zero if SYNs are not authenticated
}

// AdmitInBand admits a caller to in-band detours, or refuses it.
func (l *Leases) AdmitInBand(r InBandRequest, under Conditions) (*Admitting, *wire.Refusal) {
	m := l.members.get(r.Name, r.Serial)
	if m == nil {
		return nil, tooManyMembers(r.ID)
	}
	now := under.Now
	granted := &admission{Caller: Caller{m, r.Client}, session: r.Session, by: l.sessions.live[r.Session].by, key: r.Key,
		clientPort: r.ClientPort, expires: now.Add(l.terms.Lifetime)}
	if refusal := l.mayAdmit(granted, r.Request, under); refusal != nil {
		return nil, refusal
	}
	a := &Admitting{member: m, Keys: []netip.Addr{r.Client}}
	if l.admissions.until(granted.Caller).IsZero() {
		a.entries = append(a.entries, l.admissionEntry(attribution.AdmissionGranted, now, granted.Caller, granted.by))
	}
	old := l.admissions.superseded(r.Client, r.Session)
	l.admissions[r.Client] = slices.DeleteFunc(l.admissions[r.Client], func(x *admission) bool { return slices.Contains(old, x) })
	l.admissions.add(granted)
	a.admit(l.admissions.rule(granted.Caller, now))
	a.undo = func() (e Ending) {
		l.endAdmissions(&e, now, func(x *admission) bool { return x == granted })
		return e
	}
	return a, nil
}

// mayAdmit returns a refusal if the operator or the address forbids the admission.
func (l *Leases) mayAdmit(a *admission, r Request, under Conditions) *wire.Refusal {
	if under.NoInBand != "" {
		return refuse(r.ID, wire.NotOffered, under.NoInBand)
	}
	if refusal := under.anywhere(r); refusal != nil {
		return refusal
	}
	if refusal := under.closed(r); refusal != nil {
		return refusal
	}
	id := r.ID
	if !a.Addr.Is4() {
		return refuse(id, wire.FamilyMismatch, "a SYN has room for the address of an IPv4 server only")
	}
	if l.sessions.of[a.Caller] == 0 {
		return refuseFor(retryFault, id, wire.Busy, fmt.Sprintf("you no longer have a session from %v", a.Addr))
	}
	there := l.admissions[a.Addr]
	for _, x := range there {
		if x.Member != a.Member && l.terms.InBand == rules.InBandOpen {
			return refuseFor(retryQuota, id, wire.Busy,
				fmt.Sprintf("another member uses your address %v, and without the authenticator the waypoint cannot distinguish you", a.Addr))
		}
	}
	if len(there)-len(l.admissions.superseded(a.Addr, a.session)) >= inband.MaxSlots {
		return refuseFor(retryQuota, id, wire.Busy, fmt.Sprintf("too many members use your address %v for the waypoint to distinguish them", a.Addr))
	}
	return nil
}

// adoptAdmission takes over an earlier agent's admission of a caller, until the caller has had time to reconnect. It keeps the
// newest key of the caller's member, even if another member at the same address reconnects first.
func (l *Leases) adoptAdmission(c Caller, keys []inband.Slot, now, expires time.Time) {
	a := &admission{Caller: c, expires: expires}
	if grace := now.Add(AdoptedGrace); grace.Before(expires) {
		a.expires = grace
	}
	mark := l.inBandMark(c.Member)
	before := slices.DeleteFunc(slices.Clone(keys), func(s inband.Slot) bool { return s.Mark != mark })
	if len(before) > 0 {
		newest := before[len(before)-1]
		a.key, a.clientPort = newest.Key, newest.ClientPort
		if newest.Expires.Before(a.expires) {
			a.expires = newest.Expires
		}
	}
	l.admissions.add(a)
}

func (l *Leases) admissionEntry(event attribution.Event, now time.Time, c Caller, by *attribution.Session) attribution.Entry {
	e := attribution.Entry{Time: now, Event: event, By: by, Kind: wire.InBand.String(), Member: c.Member.Name, Serial: c.Member.Serial, Client: c.Addr}
	if event == attribution.AdmissionGranted {
		e.LeaseSeconds = l.terms.Lifetime.Seconds()
	}
	return e
}
