package directory

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Limits limit the content of a directory. Records beyond them are refused.
type Limits struct {
	Members int
	Bytes   int // of signed records
}

// DefaultLimits returns limits for ten times as many members as dcol is measured with.
func DefaultLimits() Limits { return Limits{Members: 100_000, Bytes: 256 << 20} }

// Directory is the verified copy. It does no I/O and gets the time as a parameter. It is not for concurrent use.
type Directory struct {
	limits  Limits
	entries map[string]*entry // by name
	subnets subnets
	keys    map[WireGuardKey]string // owners of keys
	waiting map[string]*entry       // verified, but another member has what they claim; at most maxWaiting
	bytes   int
	refused map[Reason]uint64
	last    error // the last refusal
	ticked  time.Time
	relist  time.Time // when to ask for everything again; zero: never
	foreign bool      // a record was refused because of its authority since everything was requested

	// The position in the feed.
	epoch    uint64
	revision uint64
	head     uint64 // of the store, as far as known
	doubt    bool   // batches may have been missed
	listing  listing
}

type entry struct {
	*Verified
	epoch    uint64 // of the batch or listing that had it
	revision uint64
	mark     uint64 // of the listing that had it last
}

// listing is the state of a listing that is under way.
type listing struct {
	id   uint64 // 0: none
	mark uint64 // grows with each listing
}

// New returns an empty directory, which must ask for everything.
func New(limits Limits) *Directory {
	return &Directory{
		limits: limits, entries: map[string]*entry{}, keys: map[WireGuardKey]string{}, waiting: map[string]*entry{},
		refused: map[Reason]uint64{}, doubt: true,
	}
}

// Get returns a member's record.
func (d *Directory) Get(name string) (*Verified, bool) {
	e, ok := d.entries[name]
	if !ok {
		return nil, false
	}
	return e.Verified, true
}

// All returns the members in no particular order.
func (d *Directory) All() iter.Seq[*Verified] {
	return func(yield func(*Verified) bool) {
		for _, e := range d.entries {
			if !yield(e.Verified) {
				return
			}
		}
	}
}

// Len returns the number of members.
func (d *Directory) Len() int { return len(d.entries) }

// Bytes returns the size of all signed records.
func (d *Directory) Bytes() int { return d.bytes }

// Refused returns the number of records that were refused since the start, by reason.
func (d *Directory) Refused() map[Reason]uint64 { return maps.Clone(d.refused) }

// LastRefusal returns the last refusal, or nil if no record was refused.
func (d *Directory) LastRefusal() error { return d.last }

// Position returns the epoch of the followed store, and the revision of this copy. They are zero before the first
// batch.
func (d *Directory) Position() (epoch, revision uint64) { return d.epoch, d.revision }

// Judge verifies a new record before a coordinator stores it. It refuses a record that claims another member's subnet
// or key, even if the authority assigned the subnet later.
func (d *Directory) Judge(s *SignedRecord, trust *collective.Trust, now time.Time) (*Verified, error) {
	v, err := d.judge(s, trust, now)
	if err != nil {
		return nil, err
	}
	displaced, err := d.conflicts(v)
	if err != nil {
		return nil, err
	}
	if len(displaced) > 0 {
		return nil, refuse(SubnetTaken, v.Record.Name, "%v is in use by %s", v.Record.Subnet, displaced[0])
	}
	return v, nil
}

// judge verifies the record, and compares it with its predecessor and the limits.
func (d *Directory) judge(s *SignedRecord, trust *collective.Trust, now time.Time) (*Verified, error) {
	v, err := s.Verify(trust, now)
	if err != nil {
		return nil, err
	}
	r := &v.Record
	members, bytes := len(d.entries)+1, d.bytes+s.Size()
	if old := d.entries[r.Name]; old != nil {
		if !v.supersedes(old.Verified) {
			return nil, refuse(Older, r.Name, "number %d with certificate %s is not newer than number %d with %s",
				r.Sequence, v.Holder.Serial, old.Record.Sequence, old.Holder.Serial)
		}
		members, bytes = members-1, bytes-old.Signed.Size()
	}
	if members > d.limits.Members || bytes > d.limits.Bytes {
		return nil, refuse(Full, r.Name, "there are %d members with %d bytes, at most %d with %d",
			len(d.entries), d.bytes, d.limits.Members, d.limits.Bytes)
	}
	return v, nil
}

// conflicts compares the record with those of others. If certificates assign the same subnet to two members, the
// later certificate is right.
func (d *Directory) conflicts(v *Verified) (displaced []string, err error) {
	r := &v.Record
	if has := d.keys[r.Key]; !r.Key.IsZero() && has != "" && has != r.Name {
		return nil, refuse(KeyTaken, r.Name, "its key for WireGuard is that of %s", has)
	}
	displaced = d.subnets.overlapping(r.Subnet, r.Name)
	for _, name := range displaced {
		if !v.Holder.NotBefore.After(d.entries[name].Holder.NotBefore) {
			return nil, refuse(SubnetTaken, r.Name, "%v is in use by %s", r.Subnet, name)
		}
	}
	return displaced, nil
}

// put makes e the record of its member, unless another member has what it claims.
func (d *Directory) put(e *entry) (events []Event, err error) {
	r := &e.Record
	displaced, err := d.conflicts(e.Verified)
	if err != nil {
		return nil, err
	}
	for _, name := range displaced {
		d.waitFor(d.entries[name])
		events = append(events, d.drop(name, "its subnet was given to "+r.Name))
	}
	var old *Verified
	if before := d.entries[r.Name]; before != nil {
		old = before.Verified
		d.forget(before)
	}
	d.entries[r.Name] = e
	d.subnets.add(r.Subnet, r.Name)
	if !r.Key.IsZero() {
		d.keys[r.Key] = r.Name
	}
	d.bytes += e.Signed.Size()
	if w := d.waiting[r.Name]; w != nil && !w.supersedes(e.Verified) {
		delete(d.waiting, r.Name)
	}
	return append(events, newEvent(old, e.Verified)), nil
}

// drop removes a known member.
func (d *Directory) drop(name, why string) Event {
	e := d.entries[name]
	d.forget(e)
	return Event{Kind: Left, Name: name, Old: e.Verified, Why: why}
}

func (d *Directory) forget(e *entry) {
	r := &e.Record
	delete(d.entries, r.Name)
	d.subnets.remove(r.Subnet)
	delete(d.keys, r.Key)
	d.bytes -= e.Signed.Size()
}

// maxWaiting limits the number of conflicts. Each is a mistake, or comes from changes of two members that arrived in
// another order.
const maxWaiting = 256

// waitFor keeps a record until no other member has what it claims.
func (d *Directory) waitFor(e *entry) {
	there := d.waiting[e.Record.Name]
	if there == nil && len(d.waiting) == maxWaiting || there != nil && there.supersedes(e.Verified) {
		return
	}
	d.waiting[e.Record.Name] = e
}

// retry puts waiting records until no more can be put, because putting one may free what another claims. It ends,
// because a record replaces only older ones.
func (d *Directory) retry() (events []Event) {
	for range maxWaiting { // usually two rounds are enough
		more := d.retryEach()
		if len(more) == 0 {
			break
		}
		events = append(events, more...)
	}
	return events
}

// retryEach tries every waiting record once.
func (d *Directory) retryEach() (events []Event) {
	for _, name := range slices.Sorted(maps.Keys(d.waiting)) {
		e := d.waiting[name]
		if e == nil {
			continue // it was replaced in this loop
		}
		if old := d.entries[name]; old != nil && !e.supersedes(old.Verified) {
			delete(d.waiting, name)
			continue
		}
		if more, err := d.put(e); err == nil {
			events = append(events, more...)
		}
	}
	return events
}
