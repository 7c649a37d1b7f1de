package register

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

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

// Expulsion is the end of a membership.
type Expulsion struct {
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Left bool      `json:"left,omitempty"` // the member has ended it itself
	Done bool      `json:"done,omitempty"` // all members were told
	// Counts is the time until which certificates may be valid that cannot be revoked, as no record has them.
	Counts time.Time `json:"counts,omitzero"`
}

// Former is an expelled host whose name another host has now.
type Former struct {
	Key       collective.PublicKey `json:"key"`
	Until     time.Time            `json:"until"`
	Expulsion Expulsion            `json:"expulsion"`
}

// IsMember reports whether m is a member that was not expelled and has not left.
func (m *Member) IsMember() bool { return m != nil && m.Expelled == nil }

// isBanned reports whether m was expelled. A member that has left may come back.
func (m *Member) isBanned() bool { return m != nil && m.Expelled != nil && !m.Expelled.Left }

// ended returns m with an end of its membership.
func (m *Member) ended(e Expulsion) *Member {
	next := *m
	next.Expelled = &e
	return &next
}

// former returns the i-th of the expelled hosts that had the name of m before, as a member.
func (m *Member) former(i int) *Member {
	f := m.Former[i]
	return &Member{Name: m.Name, Key: f.Key, Until: f.Until, Expelled: &f.Expulsion, Former: m.Former[:i]}
}

// keys returns the keys of a member and of the expelled hosts that had its name before.
func (m *Member) keys() []collective.PublicKey {
	keys := []collective.PublicKey{m.Key}
	for _, f := range m.Former {
		keys = append(keys, f.Key)
	}
	return keys
}
