package coordinator

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

const (
	// grace is how long after its last certificate a member may still renew. Then its name and its subnet
	// are free again.
	grace = 90 * 24 * time.Hour
	// keepTokens is how long after its end a token is known: who comes late is told that it has expired.
	keepTokens = 30 * 24 * time.Hour

	maxMembers = 100_000
	maxTokens  = 2 * maxMembers // with those that are used or over
)

// register is who was invited, who is a member and who was expelled. It decides: it does no I/O and is told
// the time. What it decides are entries, which count only when they are on disk and applied.
type register struct {
	members map[string]*member
	keys    map[publicKey]string // who has which
	tokens  map[string]*token    // by hash
	pool    *pool
	random  func(n int) int
}

// publicKey is written in hexadecimal.
type publicKey collective.PublicKey

func (k publicKey) MarshalText() ([]byte, error) {
	return []byte(collective.PublicKey(k).String()), nil
}

func (k *publicKey) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(k[:], text[:min(len(text), 2*len(k))]); err != nil || n != len(k) || len(text) != 2*len(k) {
		return fmt.Errorf("%.80q is no key", text)
	}
	return nil
}

// member is who has, or had, a certificate.
type member struct {
	Name     string         `json:"name"`
	Key      publicKey      `json:"key"`
	Subnet   netip.Prefix   `json:"subnet,omitzero"`
	LANs     []netip.Prefix `json:"lans,omitempty"`
	Joined   time.Time      `json:"joined"`
	Until    time.Time      `json:"until"` // no certificate of its lasts longer
	Expelled *expelled      `json:"expelled,omitempty"`
}

type expelled struct {
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Done bool      `json:"done,omitempty"` // everybody was told
	// Counts is until when certificates may count that are in nobody's records, and so cannot be revoked.
	Counts time.Time `json:"counts,omitzero"`
}

// token is an invitation. Its secret is not kept.
type token struct {
	Hash    string    `json:"hash"`
	Name    string    `json:"name,omitempty"`
	Expires time.Time `json:"expires"`
	Void    bool      `json:"void,omitempty"` // whether it was used is not known any more
	// Who used it; with that key it may be used again, as the answer may have been lost.
	Member string    `json:"member,omitempty"`
	Key    publicKey `json:"key,omitzero"`
	Used   time.Time `json:"used,omitzero"`
}

// entry is one change, as it is written. What it has replaces what was there.
type entry struct {
	Format     int          `json:"format,omitempty"` // of the file, in its first entry
	Collective string       `json:"collective,omitempty"`
	Block      netip.Prefix `json:"block,omitzero"`
	Token      *token       `json:"token,omitempty"`
	Member     *member      `json:"member,omitempty"`
	Forget     []string     `json:"forget,omitempty"` // members
	Drop       []string     `json:"drop,omitempty"`   // tokens
}

func (e *entry) empty() bool {
	return !e.Block.IsValid() && e.Token == nil && e.Member == nil && len(e.Forget) == 0 && len(e.Drop) == 0
}

func newRegister(random func(n int) int) *register {
	return &register{members: map[string]*member{}, keys: map[publicKey]string{}, tokens: map[string]*token{}, pool: newPool(), random: random}
}

// apply makes an entry true.
func (r *register) apply(e *entry) {
	if e.Block.IsValid() && !slices.Contains(r.pool.blocks, e.Block) {
		r.pool.blocks = append(r.pool.blocks, e.Block)
	}
	for _, hash := range e.Drop {
		delete(r.tokens, hash)
	}
	for _, name := range e.Forget {
		r.forget(name)
	}
	if e.Token != nil {
		r.tokens[e.Token.Hash] = e.Token
	}
	if e.Member != nil {
		r.forget(e.Member.Name)
		r.members[e.Member.Name], r.keys[e.Member.Key] = e.Member, e.Member.Name
		r.pool.taken.add(e.Member.Subnet)
		for _, lan := range e.Member.LANs {
			r.pool.lans.add(lan)
		}
	}
}

func (r *register) forget(name string) {
	m := r.members[name]
	if m == nil {
		return
	}
	delete(r.members, name)
	if r.keys[m.Key] == name {
		delete(r.keys, m.Key)
	}
	r.pool.taken.remove(m.Subnet)
	for _, lan := range m.LANs {
		r.pool.lans.remove(lan)
	}
}

// all is the whole register as entries, in an order that does not depend on chance.
func (r *register) all() (out []entry) {
	for _, b := range r.pool.blocks {
		out = append(out, entry{Block: b})
	}
	for _, hash := range slices.Sorted(maps.Keys(r.tokens)) {
		out = append(out, entry{Token: r.tokens[hash]})
	}
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		out = append(out, entry{Member: r.members[name]})
	}
	return out
}

func hashSecret(s enrol.Secret) string {
	sum := sha256.Sum256(s[:])
	return hex.EncodeToString(sum[:])
}

// invite is a new token.
func (r *register) invite(secret enrol.Secret, name string, now, expires time.Time) (*entry, error) {
	if name != "" {
		if err := collective.CheckName(name); err != nil {
			return nil, err
		}
		if m := r.members[name]; m != nil {
			return nil, fmt.Errorf("the name %s is taken: %s; invite it as %s", name, r.holds(m, now), r.propose(name))
		}
	}
	if len(r.tokens) >= maxTokens {
		return nil, fmt.Errorf("there are %d invitations already: wait until some have expired", len(r.tokens))
	}
	return &entry{Token: &token{Hash: hashSecret(secret), Name: name, Expires: expires}}, nil
}

// holds says in words why a name is not free.
func (r *register) holds(m *member, now time.Time) string {
	const day = time.DateOnly
	switch {
	case m.Expelled != nil:
		return "who was called so was expelled on " + m.Expelled.At.UTC().Format(day)
	case now.After(m.Until):
		return fmt.Sprintf("its certificate ended on %s, and it may come back until %s", m.Until.UTC().Format(day), m.Until.Add(grace).UTC().Format(day))
	}
	return "a member since " + m.Joined.UTC().Format(day)
}

// joining is a join as it is judged.
type joining struct {
	Secret enrol.Secret
	Name   string
	Key    publicKey
	LANs   []netip.Prefix
}

// admit says whether a host becomes a member, and what is to be written before it gets a certificate. An
// answer that was lost can be had again: then there is nothing to write.
func (r *register) admit(j joining, now time.Time) (*member, *entry, error) {
	hash := hashSecret(j.Secret)
	t := r.tokens[hash]
	switch {
	case t == nil:
		return nil, nil, enrol.Refuse(enrol.TokenUnknown, "this invitation is not known here; it may be long over")
	case t.Void:
		return nil, nil, enrol.Refuse(enrol.TokenUnknown, "this invitation was made void, because the coordinator's state was damaged")
	case t.Member != "" && t.Member == j.Name && t.Key == j.Key && r.members[j.Name] != nil && r.members[j.Name].Key == j.Key:
		m := r.members[j.Name]
		if m.Expelled != nil {
			return nil, nil, refuseExpelled(m)
		}
		return m, &entry{}, nil
	case t.Member != "":
		return nil, nil, enrol.Refuse(enrol.TokenUsed, "this invitation was used on %s by %s, and it counts once", stamp(t.Used), t.Member)
	case now.After(t.Expires):
		return nil, nil, enrol.Refuse(enrol.TokenExpired, "this invitation expired on %s", stamp(t.Expires))
	case t.Name != "" && t.Name != j.Name:
		refusal := enrol.Refuse(enrol.NameDiffers, "this invitation is for %s, not for %s", t.Name, j.Name)
		refusal.Proposal = t.Name
		return nil, nil, refusal
	}
	m, e, err := r.place(j, now)
	if err != nil {
		return nil, nil, err
	}
	used := *t
	used.Member, used.Key, used.Used = j.Name, j.Key, now.UTC()
	e.Token = &used
	return m, e, nil
}

// place finds a name and a subnet for a new member.
func (r *register) place(j joining, now time.Time) (*member, *entry, error) {
	if name, known := r.keys[j.Key]; known && r.members[name].Expelled != nil {
		return nil, nil, refuseExpelled(r.members[name])
	} else if known && name != j.Name {
		return nil, nil, enrol.Refuse(enrol.KeyTaken, "this key is that of the member %s", name)
	}
	m := &member{Name: j.Name, Key: j.Key, Joined: now.UTC()}
	switch old := r.members[j.Name]; {
	case old == nil && len(r.members) >= maxMembers:
		return nil, nil, enrol.Refuse(enrol.TooMany, "there are %d members, and no more are taken", len(r.members))
	case old != nil && old.Key != j.Key:
		refusal := enrol.Refuse(enrol.NameTaken, "the name %s is taken: %s", j.Name, r.holds(old, now))
		refusal.Proposal = r.propose(j.Name)
		return nil, nil, refusal
	case old != nil: // it joins again
		m.Subnet, m.Joined = old.Subnet, old.Joined
	}
	m.LANs, m.Until = usable(j.LANs), now.Add(collective.MemberValidity).UTC()
	e := &entry{Member: m}
	if !m.Subnet.IsValid() {
		var ok bool
		if m.Subnet, e.Block, ok = r.pool.pick(m.LANs, r.random); !ok {
			return nil, nil, enrol.Refuse(enrol.TooMany, "all subnets of %v are taken", allSubnets)
		}
	}
	return m, e, nil
}

// propose finds a free name like one that is taken.
func (r *register) propose(name string) string {
	for n := 2; ; n++ {
		suffix := fmt.Sprintf("-%d", n)
		free := strings.TrimRight(name[:min(len(name), 63-len(suffix))], "-") + suffix
		if r.members[free] == nil {
			return free
		}
	}
}

// renew says whether a member gets another certificate, and what is to be written before.
func (r *register) renew(name string, key publicKey, lans []netip.Prefix, now time.Time) (*member, *entry, error) {
	m := r.members[name]
	switch {
	case m == nil:
		if holder, known := r.keys[key]; known && r.members[holder].Expelled != nil {
			return nil, nil, refuseExpelled(r.members[holder])
		}
		return nil, nil, enrol.Refuse(enrol.NotMember, "%s is no member", name)
	case m.Expelled != nil:
		return nil, nil, refuseExpelled(m)
	case m.Key != key:
		return nil, nil, enrol.Refuse(enrol.NotMember, "the member %s has another key", name)
	case now.After(m.Until.Add(grace)):
		return nil, nil, enrol.Refuse(enrol.NotMember, "the last certificate of %s ended on %s, more than %d days ago", name, stamp(m.Until), grace/(24*time.Hour))
	}
	next := *m
	next.LANs = usable(lans)
	if until := now.Add(collective.MemberValidity).UTC(); until.After(next.Until) {
		next.Until = until
	}
	return &next, &entry{Member: &next}, nil
}

func refuseExpelled(m *member) error {
	return enrol.Refuse(enrol.Expelled, "%s was expelled on %s: %s", m.Name, stamp(m.Expelled.At), m.Expelled.Why)
}

// expel writes down that a member is none any more. It is what counts; all else follows from it.
func (r *register) expel(name, why string, now time.Time) (*entry, error) {
	m := r.members[name]
	if m == nil {
		return nil, fmt.Errorf("expel %s: there is no such member: dcol members lists them", name)
	}
	if m.Expelled != nil {
		return &entry{}, nil
	}
	next := *m
	next.Expelled = &expelled{At: now.UTC(), Why: why}
	return &entry{Member: &next}, nil
}

// told writes down that an expulsion is complete, and until when certificates count that could not be revoked.
func (r *register) told(name string, counts time.Time) *entry {
	m := r.members[name]
	if m == nil || m.Expelled == nil || m.Expelled.Done && m.Expelled.Counts.Equal(counts) {
		return &entry{}
	}
	next, done := *m, *m.Expelled
	done.Done, done.Counts = true, counts
	next.Expelled = &done
	return &entry{Member: &next}
}

// unfinished are those expelled of whom not everybody was told.
func (r *register) unfinished() (names []string) {
	for name, m := range r.members {
		if m.Expelled != nil && !m.Expelled.Done {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unrevoked are those expelled of whom certificates may count that could not be revoked, each with until when.
func (r *register) unrevoked(now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for name, m := range r.members {
		if m.Expelled != nil && now.Before(m.Expelled.Counts) {
			out[name] = m.Expelled.Counts
		}
	}
	return out
}

// sweep forgets what is long over. The names and keys of those expelled are kept, not their subnets.
func (r *register) sweep(now time.Time) (out []entry) {
	var e entry
	for _, hash := range slices.Sorted(maps.Keys(r.tokens)) {
		if now.After(r.tokens[hash].Expires.Add(keepTokens)) {
			e.Drop = append(e.Drop, hash)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		m := r.members[name]
		switch {
		case !now.After(m.Until.Add(grace)):
		case m.Expelled == nil:
			e.Forget = append(e.Forget, name)
		case m.Subnet.IsValid() && m.Expelled.Done:
			next := *m
			next.Subnet, next.LANs = netip.Prefix{}, nil
			out = append(out, entry{Member: &next})
		}
	}
	if !e.empty() {
		out = append(out, e)
	}
	return out
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
