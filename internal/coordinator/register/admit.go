package register

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

const maxMembers = 100_000

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
	if m := r.Member(a.Name); i.usedBy(a) && m != nil && m.Key == a.Key {
		if m.Expelled != nil {
			return nil, nil, refuseExpelled(m)
		}
		return m, &Entry{}, nil
	}
	if err := i.refuse(a, now); err != nil {
		return nil, nil, err
	}
	m, e, err := r.place(a, i.Name != "", now)
	if err != nil {
		return nil, nil, err
	}
	e.Invitation = i.use(a, now)
	return m, e, nil
}

// Place gives a new member its name and a subnet. It needs no invitation.
func (r *Register) Place(a Applicant, now time.Time) (*Member, *Entry, error) {
	return r.place(a, false, now)
}

// place gives a host a name and a subnet. named is set if the operator has invited it under this name, which may be that
// of a host that is no longer a member.
func (r *Register) place(a Applicant, named bool, now time.Time) (*Member, *Entry, error) {
	switch old := r.members.holder(a.Key); {
	case old == nil:
	case old.isBanned():
		return nil, nil, refuseExpelled(old)
	case old.Name != a.Name:
		return nil, nil, refuseKey(old.Name)
	}
	old := r.Member(a.Name)
	if old == nil && len(r.members.named) >= maxMembers {
		return nil, nil, enrol.Refuse(enrol.TooMany, "the collective is full: it has %d members", len(r.members.named))
	}
	m := a.follow(old, named, now)
	if m == nil {
		refusal := enrol.Refuse(enrol.NameTaken, "the name %s is taken: %s", a.Name, old.whyTaken(now))
		refusal.Proposal = r.propose(a.Name)
		return nil, nil, refusal
	}
	e := &Entry{Member: m}
	if !m.Subnet.IsValid() {
		var ok bool
		if m.Subnet, e.Block, ok = r.pool.pick(m.LANs, r.random); !ok {
			return nil, nil, enrol.Refuse(enrol.TooMany, "all subnets of %v are taken", allSubnets)
		}
	}
	return m, e, nil
}

// follow returns the member that a host becomes under a name, or nil if it may not have the name. old has or had the name,
// and is nil if nobody has had it.
func (a *Applicant) follow(old *Member, named bool, now time.Time) *Member {
	m := &Member{Name: a.Name, Key: a.Key, LANs: usable(a.LANs), Joined: now.UTC(), Until: now.Add(collective.MemberValidity).UTC()}
	switch {
	case old == nil:
	case old.IsMember() && old.Key == a.Key: // it joins again
		m.Subnet, m.Joined, m.Former = old.Subnet, old.Joined, old.Former
	case old.free(now) && (named || old.Key == a.Key):
		m.Former = old.expelledHolders()
	default:
		return nil
	}
	return m
}

// Renew decides whether a member gets another certificate, and returns the entry to write before it is signed.
func (r *Register) Renew(name string, key collective.PublicKey, lans []netip.Prefix, now time.Time) (*Member, *Entry, error) {
	m, holder := r.Member(name), r.members.holder(key)
	switch {
	case m == nil:
		if holder != nil && holder.Expelled != nil {
			return nil, nil, refuseExpelled(holder)
		}
		return nil, nil, enrol.Refuse(enrol.NotMember, "%s is not a member", name)
	case m.Key != key && holder != nil && holder.Name == name: // another host has its name now
		return nil, nil, refuseExpelled(holder)
	case m.Expelled != nil:
		return nil, nil, refuseExpelled(m)
	case m.Key != key:
		return nil, nil, enrol.Refuse(enrol.NotMember, "the member %s has another key", name)
	case now.After(m.Until.Add(Grace)):
		return nil, nil, enrol.Refuse(enrol.NotMember, "the last certificate of %s expired on %s, more than %d days ago", name, FormatTime(m.Until), Grace/(24*time.Hour))
	}
	next := *m
	next.LANs = usable(lans)
	next.Until = later(m.Until, now.Add(collective.MemberValidity).UTC())
	return &next, &Entry{Member: &next}, nil
}

// Readmit adds a member that shows a valid certificate. The entry is nil if the register has the member already.
func (r *Register) Readmit(m collective.Member) (*Entry, error) {
	if r.Member(m.Name) != nil {
		return nil, nil
	}
	if holder := r.members.holder(m.Key); holder != nil {
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
