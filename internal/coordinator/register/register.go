// Package register implements the register of a collective: invitations, members, expulsions, and
// the subnet of each member.
//
// A Register decides. It does no I/O and is told the time. Each decision is an Entry, which takes effect once it is in
// the File (file.go) and has been applied. subnets.go chooses subnets. recover.go adds what a damaged register lacks.
package register

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Grace is the time for which a member may still renew after its certificate has ended. Then its name and subnet are free.
const Grace = 90 * 24 * time.Hour

const (
	// keepInvitations is the time for which an expired invitation is kept, so that a late host is told that it has expired.
	keepInvitations = 30 * 24 * time.Hour

	maxMembers     = 100_000
	maxInvitations = 2 * maxMembers // including used and expired ones
)

// Register holds invitations, members and subnets. It is not safe for concurrent use.
type Register struct {
	members     map[string]*Member
	keys        map[collective.PublicKey]string // names of members by key
	invitations map[string]*Invitation          // by hash
	pool        *pool
	random      func(n int) int
}

// Member is a host that has, or had, a certificate. A Member in a Register never changes: it is replaced.
type Member struct {
	Name     string               `json:"name"`
	Key      collective.PublicKey `json:"key"`
	Subnet   netip.Prefix         `json:"subnet,omitzero"`
	LANs     []netip.Prefix       `json:"lans,omitempty"`
	Joined   time.Time            `json:"joined"`
	Until    time.Time            `json:"until"` // none of its certificates lasts longer
	Expelled *Expulsion           `json:"expelled,omitempty"`
	// Former lists the expelled hosts that had this name before, so that their keys stay refused.
	Former []Former `json:"former,omitempty"`
}

// Former is an expelled host whose name another host has now.
type Former struct {
	Key       collective.PublicKey `json:"key"`
	Until     time.Time            `json:"until"`
	Expulsion Expulsion            `json:"expulsion"`
}

// maxFormer bounds the expelled hosts of one name, and so the length of its line in the file.
const maxFormer = 64

// IsMember reports whether m is a member that was not expelled and has not left.
func (m *Member) IsMember() bool { return m != nil && m.Expelled == nil }

// Expulsion is the end of a membership.
type Expulsion struct {
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Left bool      `json:"left,omitempty"` // the member has ended it itself
	Done bool      `json:"done,omitempty"` // all members were told
	// Counts is the time until which certificates may be valid that cannot be revoked, as no record has them.
	Counts time.Time `json:"counts,omitzero"`
}

// Invitation lets one host join. Only a hash of its secret is kept.
type Invitation struct {
	Hash    string    `json:"hash"`
	Name    string    `json:"name,omitempty"` // of the member it is for; empty: any
	Expires time.Time `json:"expires"`
	Void    bool      `json:"void,omitempty"` // the register was damaged, so it may have been used
	// Member used it, with Key, at Used. The same member may use it again, as the answer may have been lost.
	Member string               `json:"member,omitempty"`
	Key    collective.PublicKey `json:"key,omitzero"`
	Used   time.Time            `json:"used,omitzero"`
}

// Entry is one change, as written to the file. It replaces earlier entries about the same thing.
type Entry struct {
	Format     int          `json:"format,omitempty"` // of the file, in its first entry
	Collective string       `json:"collective,omitempty"`
	Block      netip.Prefix `json:"block,omitzero"` // new subnets are taken from it
	Invitation *Invitation  `json:"token,omitempty"`
	Member     *Member      `json:"member,omitempty"`
	Forget     []string     `json:"forget,omitempty"` // names of members
	Drop       []string     `json:"drop,omitempty"`   // hashes of invitations
}

// empty reports whether there is nothing to write.
func (e *Entry) empty() bool {
	return !e.Block.IsValid() && e.Invitation == nil && e.Member == nil && len(e.Forget) == 0 && len(e.Drop) == 0
}

// New returns an empty register. Subnets are chosen with random, which returns a number below n.
func New(random func(n int) int) *Register {
	return &Register{
		members: map[string]*Member{}, keys: map[collective.PublicKey]string{}, invitations: map[string]*Invitation{}, pool: newPool(), random: random,
	}
}

// Apply makes a change that has been written.
func (r *Register) Apply(e *Entry) {
	if e.Block.IsValid() && !slices.Contains(r.pool.blocks, e.Block) {
		r.pool.blocks = append(r.pool.blocks, e.Block)
	}
	for _, hash := range e.Drop {
		delete(r.invitations, hash)
	}
	for _, name := range e.Forget {
		r.forget(name)
	}
	if e.Invitation != nil {
		r.invitations[e.Invitation.Hash] = e.Invitation
	}
	if e.Member != nil {
		r.forget(e.Member.Name)
		for _, f := range e.Member.Former {
			r.keys[f.Key] = e.Member.Name
		}
		r.members[e.Member.Name], r.keys[e.Member.Key] = e.Member, e.Member.Name
		r.pool.taken.add(e.Member.Subnet)
		for _, lan := range e.Member.LANs {
			r.pool.lans.add(lan)
		}
	}
}

func (r *Register) forget(name string) {
	m := r.members[name]
	if m == nil {
		return
	}
	delete(r.members, name)
	for _, key := range m.keys() {
		if r.keys[key] == name {
			delete(r.keys, key)
		}
	}
	r.pool.taken.remove(m.Subnet)
	for _, lan := range m.LANs {
		r.pool.lans.remove(lan)
	}
}

// keys returns the keys of a member and of the expelled hosts that had its name before.
func (m *Member) keys() []collective.PublicKey {
	keys := []collective.PublicKey{m.Key}
	for _, f := range m.Former {
		keys = append(keys, f.Key)
	}
	return keys
}

// holder returns the member with a key, or nil. If the key is that of an expelled host whose name another host has now,
// it returns the expelled one.
func (r *Register) holder(key collective.PublicKey) *Member {
	m := r.members[r.keys[key]]
	if m == nil || m.Key == key {
		return m
	}
	i := slices.IndexFunc(m.Former, func(f Former) bool { return f.Key == key })
	return &Member{Name: m.Name, Key: key, Until: m.Former[i].Until, Expelled: &m.Former[i].Expulsion}
}

// freeFrom returns the time from which an invitation may give the name of m to another host, or false if it is taken. The
// name of a host that has left is free once all members were told. That of an expelled host is free when the last of its
// certificates has expired, too, because it may use them at waypoints that have no connection to the coordinator.
func (m *Member) freeFrom() (time.Time, bool) {
	switch {
	case m.Expelled == nil || !m.Expelled.Done || len(m.Former) >= maxFormer:
		return time.Time{}, false
	case m.Expelled.Left:
		return m.Expelled.Counts, true
	}
	return later(m.Until, m.Expelled.Counts), true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// free reports whether an invitation may give the name of m to another host now.
func (m *Member) free(now time.Time) bool {
	from, ok := m.freeFrom()
	return ok && !now.Before(from)
}

// all returns the whole register as entries, always in the same order.
func (r *Register) all() (out []Entry) {
	for _, b := range r.pool.blocks {
		out = append(out, Entry{Block: b})
	}
	for _, hash := range slices.Sorted(maps.Keys(r.invitations)) {
		out = append(out, Entry{Invitation: r.invitations[hash]})
	}
	for _, m := range r.Members() {
		out = append(out, Entry{Member: m})
	}
	return out
}

// Member returns the member with this name, expelled or not, or nil.
func (r *Register) Member(name string) *Member { return r.members[name] }

// Members returns all members, including expelled ones, sorted by name.
func (r *Register) Members() (out []*Member) {
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		out = append(out, r.members[name])
	}
	return out
}

// OpenInvitations returns the number of invitations that can be used.
func (r *Register) OpenInvitations(now time.Time) (n int) {
	for _, i := range r.invitations {
		if i.Member == "" && !i.Void && !now.After(i.Expires) {
			n++
		}
	}
	return n
}

func hashSecret(s enrol.Secret) string {
	sum := sha256.Sum256(s[:])
	return hex.EncodeToString(sum[:])
}

// Invite makes an invitation, for the given name if there is one.
func (r *Register) Invite(secret enrol.Secret, name string, now, expires time.Time) (*Entry, error) {
	if name != "" {
		if err := collective.CheckName(name); err != nil {
			return nil, err
		}
		if m := r.members[name]; m != nil && !m.free(now) {
			return nil, fmt.Errorf("the name %s is taken: %s; invite it as %s", name, whyTaken(m, now), r.propose(name))
		}
	}
	if len(r.invitations) >= maxInvitations {
		return nil, fmt.Errorf("there are %d invitations already: wait until some have expired", len(r.invitations))
	}
	return &Entry{Invitation: &Invitation{Hash: hashSecret(secret), Name: name, Expires: expires}}, nil
}

// whyTaken explains why the name of m is not free.
func whyTaken(m *Member, now time.Time) string {
	const day = time.DateOnly
	switch {
	case m.Expelled != nil:
		why := "its holder was expelled on " + m.Expelled.At.UTC().Format(day)
		if m.Expelled.Left {
			why = "its holder left on " + m.Expelled.At.UTC().Format(day)
		}
		from, ok := m.freeFrom()
		switch {
		case ok && now.Before(from):
			why += ", and from " + FormatTime(from) + " on an invitation for this name gives it to another host"
		case ok:
			why += ", and only an invitation for this name gives it to another host"
		}
		return why
	case now.After(m.Until):
		return fmt.Sprintf("its certificate expired on %s, and it may return until %s", m.Until.UTC().Format(day), m.Until.Add(Grace).UTC().Format(day))
	}
	return "a member since " + m.Joined.UTC().Format(day)
}

// Applicant is a host that wants to join.
type Applicant struct {
	Secret enrol.Secret
	Name   string
	Key    collective.PublicKey
	LANs   []netip.Prefix
}

// Admit decides whether a host becomes a member, and returns the entry to write before its certificate is signed.
// A host that asks again, because the answer was lost, is admitted again with an empty entry.
func (r *Register) Admit(a Applicant, now time.Time) (*Member, *Entry, error) {
	i := r.invitations[hashSecret(a.Secret)]
	switch {
	case i == nil:
		return nil, nil, enrol.Refuse(enrol.TokenUnknown, "this coordinator does not know the invitation; it may have expired long ago")
	case i.Void:
		return nil, nil, enrol.Refuse(enrol.TokenUnknown, "this invitation is void, because the coordinator's state was damaged")
	case i.Member != "" && i.Member == a.Name && i.Key == a.Key && r.members[a.Name] != nil && r.members[a.Name].Key == a.Key:
		m := r.members[a.Name]
		if m.Expelled != nil {
			return nil, nil, refuseExpelled(m)
		}
		return m, &Entry{}, nil
	case i.Member != "":
		return nil, nil, enrol.Refuse(enrol.TokenUsed, "this invitation was used on %s by %s, and works only once", FormatTime(i.Used), i.Member)
	case now.After(i.Expires):
		return nil, nil, enrol.Refuse(enrol.TokenExpired, "this invitation expired on %s", FormatTime(i.Expires))
	case i.Name != "" && i.Name != a.Name:
		refusal := enrol.Refuse(enrol.NameDiffers, "this invitation is for %s, not for %s", i.Name, a.Name)
		refusal.Proposal = i.Name
		return nil, nil, refusal
	}
	m, e, err := r.place(a, i.Name != "", now)
	if err != nil {
		return nil, nil, err
	}
	used := *i
	used.Member, used.Key, used.Used = a.Name, a.Key, now.UTC()
	e.Invitation = &used
	return m, e, nil
}

// Place gives a new member its name and a subnet. It needs no invitation.
func (r *Register) Place(a Applicant, now time.Time) (*Member, *Entry, error) {
	return r.place(a, false, now)
}

// place gives a host a name and a subnet. named is set if the operator has invited it under this name, which may be that
// of a host that is no longer a member.
func (r *Register) place(a Applicant, named bool, now time.Time) (*Member, *Entry, error) {
	switch old := r.holder(a.Key); {
	case old == nil:
	case old.Expelled != nil && !old.Expelled.Left:
		return nil, nil, refuseExpelled(old)
	case old.Name != a.Name:
		return nil, nil, refuseKey(old.Name)
	}
	m := &Member{Name: a.Name, Key: a.Key, Joined: now.UTC()}
	switch old := r.members[a.Name]; {
	case old == nil && len(r.members) >= maxMembers:
		return nil, nil, enrol.Refuse(enrol.TooMany, "the collective is full: it has %d members", len(r.members))
	case old != nil && old.Expelled != nil && old.free(now) && (named || old.Key == a.Key):
		m.Former = old.Former
		if !old.Expelled.Left {
			m.Former = append(slices.Clone(m.Former), Former{old.Key, old.Until, *old.Expelled})
		}
	case old != nil && (old.Key != a.Key || old.Expelled != nil):
		refusal := enrol.Refuse(enrol.NameTaken, "the name %s is taken: %s", a.Name, whyTaken(old, now))
		refusal.Proposal = r.propose(a.Name)
		return nil, nil, refusal
	case old != nil: // it joins again
		m.Subnet, m.Joined, m.Former = old.Subnet, old.Joined, old.Former
	}
	m.LANs, m.Until = usable(a.LANs), now.Add(collective.MemberValidity).UTC()
	e := &Entry{Member: m}
	if !m.Subnet.IsValid() {
		var ok bool
		if m.Subnet, e.Block, ok = r.pool.pick(m.LANs, r.random); !ok {
			return nil, nil, enrol.Refuse(enrol.TooMany, "all subnets of %v are taken", allSubnets)
		}
	}
	return m, e, nil
}

// propose returns a free name that resembles a taken one.
func (r *Register) propose(name string) string {
	for n := 2; ; n++ {
		suffix := fmt.Sprintf("-%d", n)
		free := strings.TrimRight(name[:min(len(name), 63-len(suffix))], "-") + suffix
		if r.members[free] == nil {
			return free
		}
	}
}

// Renew decides whether a member gets another certificate, and returns the entry to write before it is signed.
func (r *Register) Renew(name string, key collective.PublicKey, lans []netip.Prefix, now time.Time) (*Member, *Entry, error) {
	m := r.members[name]
	switch {
	case m == nil:
		if holder := r.holder(key); holder != nil && holder.Expelled != nil {
			return nil, nil, refuseExpelled(holder)
		}
		return nil, nil, enrol.Refuse(enrol.NotMember, "%s is not a member", name)
	case m.Key != key && r.keys[key] == name: // another host has its name now
		return nil, nil, refuseExpelled(r.holder(key))
	case m.Expelled != nil:
		return nil, nil, refuseExpelled(m)
	case m.Key != key:
		return nil, nil, enrol.Refuse(enrol.NotMember, "the member %s has another key", name)
	case now.After(m.Until.Add(Grace)):
		return nil, nil, enrol.Refuse(enrol.NotMember, "the last certificate of %s expired on %s, more than %d days ago", name, FormatTime(m.Until), Grace/(24*time.Hour))
	}
	next := *m
	next.LANs = usable(lans)
	if until := now.Add(collective.MemberValidity).UTC(); until.After(next.Until) {
		next.Until = until
	}
	return &next, &Entry{Member: &next}, nil
}

// Readmit adds a member that shows a valid certificate. The entry is nil if the register has the member already.
func (r *Register) Readmit(m collective.Member) (*Entry, error) {
	if r.members[m.Name] != nil {
		return nil, nil
	}
	if holder := r.holder(m.Key); holder != nil {
		return nil, refuseKey(holder.Name)
	}
	return &Entry{Member: &Member{Name: m.Name, Key: m.Key, Subnet: m.Subnet, Joined: m.NotBefore.UTC(), Until: m.NotAfter.UTC()}}, nil
}

func refuseKey(holder string) error {
	return enrol.Refuse(enrol.KeyTaken, "this key belongs to the member %s", holder)
}

func refuseExpelled(m *Member) error {
	if m.Expelled.Left {
		return enrol.Refuse(enrol.NotMember, "%s left on %s", m.Name, FormatTime(m.Expelled.At))
	}
	return enrol.Refuse(enrol.Expelled, "%s was expelled on %s: %s", m.Name, FormatTime(m.Expelled.At), m.Expelled.Why)
}

// Expel ends a membership. Revoking certificates and telling members follow from this entry.
func (r *Register) Expel(name, why string, now time.Time) (*Entry, error) {
	m := r.members[name]
	if m == nil {
		return nil, fmt.Errorf("expel %s: there is no such member; dcol members lists them", name)
	}
	next := *m
	switch {
	case m.Expelled == nil:
		next.Expelled = &Expulsion{At: now.UTC(), Why: why}
	case m.Expelled.Left: // and may not come back
		expelled := *m.Expelled
		expelled.Left, expelled.Why = false, why
		next.Expelled = &expelled
	default:
		return &Entry{}, nil
	}
	return &Entry{Member: &next}, nil
}

// whyLeft is the reason of an expulsion that the member has asked for.
const whyLeft = "it has left"

// Leave ends the membership of the host with this key, as it asks. It returns the name of the member. What follows is the
// same as after Expel.
func (r *Register) Leave(key collective.PublicKey, now time.Time) (name string, e *Entry, err error) {
	m := r.holder(key)
	switch {
	case m == nil:
		return "", nil, enrol.Refuse(enrol.NotMember, "no member has this key")
	case m.Expelled != nil && !m.Expelled.Left:
		return "", nil, refuseExpelled(m)
	case m.Expelled != nil: // the answer was lost
		return m.Name, &Entry{}, nil
	}
	next := *m
	next.Expelled = &Expulsion{At: now.UTC(), Why: whyLeft, Left: true}
	return m.Name, &Entry{Member: &next}, nil
}

// Complete records that all members were told of an expulsion, and until when certificates may be valid that
// could not be revoked.
func (r *Register) Complete(name string, counts time.Time) *Entry {
	m := r.members[name]
	if m == nil || m.Expelled == nil || m.Expelled.Done && m.Expelled.Counts.Equal(counts) {
		return &Entry{}
	}
	next, done := *m, *m.Expelled
	done.Done, done.Counts = true, counts
	next.Expelled = &done
	return &Entry{Member: &next}
}

// Unfinished returns the names of expelled members whose expulsion some members have not been told yet.
func (r *Register) Unfinished() (names []string) {
	for name, m := range r.members {
		if m.Expelled != nil && !m.Expelled.Done {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Sweep forgets memberships and invitations that ended long ago. Of expelled members it keeps the name and the
// key, and frees the subnet. The name of a forgotten member belongs to the last expelled one again, if there is one.
func (r *Register) Sweep(now time.Time) (out []Entry) {
	var e Entry
	for _, hash := range slices.Sorted(maps.Keys(r.invitations)) {
		if now.After(r.invitations[hash].Expires.Add(keepInvitations)) {
			e.Drop = append(e.Drop, hash)
		}
	}
	for _, m := range r.Members() {
		switch {
		case !now.After(m.Until.Add(Grace)):
		case m.IsMember() || m.Expelled.Left && m.Expelled.Done:
			if last := len(m.Former) - 1; last >= 0 {
				f := m.Former[last]
				out = append(out, Entry{Member: &Member{Name: m.Name, Key: f.Key, Until: f.Until, Expelled: &f.Expulsion, Former: m.Former[:last]}})
			} else {
				e.Forget = append(e.Forget, m.Name)
			}
		case m.Subnet.IsValid() && m.Expelled.Done:
			next := *m
			next.Subnet, next.LANs = netip.Prefix{}, nil
			out = append(out, Entry{Member: &next})
		}
	}
	if !e.empty() {
		out = append(out, e)
	}
	return out
}

// FormatTime returns t as refusals and messages to the operator show it.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
