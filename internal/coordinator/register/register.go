// Package register implements the register of a collective: invitations, members, expulsions, and
// the subnet of each member.
//
// A Register decides. It does no I/O and is told the time. Each decision is an Entry, which takes effect once it is in
// the File and has been applied:
//
//	register.go            the state, and how an Entry changes it
//	member.go roster.go    what is known of a member; the members by name and key
//	invite.go admit.go     who joins, and who gets another certificate
//	names.go               which names are free, and what stays of their former holders
//	expel.go               how a membership ends
//	sweep.go               what is forgotten
//	recover.go             what a damaged register lacks
//	subnets.go             which subnet a member gets
//	file.go                the file
package register

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Register holds invitations, members and subnets. It is not safe for concurrent use.
type Register struct {
	members     roster
	invitations map[string]*Invitation // by hash
	pool        *pool
	random      func(n int) int
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
	return &Register{members: newRoster(), invitations: map[string]*Invitation{}, pool: newPool(), random: random}
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
		r.members.add(e.Member)
		r.pool.take(e.Member.Subnet, e.Member.LANs)
	}
}

func (r *Register) forget(name string) {
	if m := r.members.remove(name); m != nil {
		r.pool.release(m.Subnet, m.LANs)
	}
}

// all returns the whole register as entries, always in the same order.
func (r *Register) all() (out []Entry) {
	for _, b := range r.pool.blocks {
		out = append(out, Entry{Block: b})
	}
	for _, hash := range r.hashes() {
		out = append(out, Entry{Invitation: r.invitations[hash]})
	}
	for _, m := range r.Members() {
		out = append(out, Entry{Member: m})
	}
	return out
}

// hashes returns the hashes of all invitations, sorted.
func (r *Register) hashes() []string { return slices.Sorted(maps.Keys(r.invitations)) }

// Member returns the member with this name, expelled or not, or nil.
func (r *Register) Member(name string) *Member { return r.members.named[name] }

// Members returns all members, including expelled ones, sorted by name.
func (r *Register) Members() []*Member { return r.members.sorted() }

// FormatTime returns t as refusals and messages to the operator show it.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
