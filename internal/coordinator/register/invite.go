package register

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

const maxInvitations = 2 * maxMembers // including used and expired ones

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
		if m := r.Member(name); m != nil && !m.free(now) {
			return nil, fmt.Errorf("the name %s is taken: %s; invite it as %s", name, m.whyTaken(now), r.propose(name))
		}
	}
	if len(r.invitations) >= maxInvitations {
		return nil, fmt.Errorf("there are %d invitations already: wait until some have expired", len(r.invitations))
	}
	return &Entry{Invitation: &Invitation{Hash: hashSecret(secret), Name: name, Expires: expires}}, nil
}

// refuse returns why a host may not use i for the first time, or nil if it may. i is nil if the register does not have it.
func (i *Invitation) refuse(a Applicant, now time.Time) error {
	switch {
	case i == nil:
		return enrol.Refuse(enrol.TokenUnknown, "this coordinator does not know the invitation; it may have expired long ago")
	case i.Void:
		return enrol.Refuse(enrol.TokenUnknown, "this invitation is void, because the coordinator's state was damaged")
	case i.Member != "":
		return enrol.Refuse(enrol.TokenUsed, "this invitation was used on %s by %s, and works only once", FormatTime(i.Used), i.Member)
	case now.After(i.Expires):
		return enrol.Refuse(enrol.TokenExpired, "this invitation expired on %s", FormatTime(i.Expires))
	case i.Name != "" && i.Name != a.Name:
		refusal := enrol.Refuse(enrol.NameDiffers, "this invitation is for %s, not for %s", i.Name, a.Name)
		refusal.Proposal = i.Name
		return refusal
	}
	return nil
}

// use returns i as used by a host.
func (i *Invitation) use(a Applicant, now time.Time) *Invitation {
	used := *i
	used.Member, used.Key, used.Used = a.Name, a.Key, now.UTC()
	return &used
}

// usedBy reports whether this host has used i.
func (i *Invitation) usedBy(a Applicant) bool {
	return i != nil && i.Member == a.Name && i.Key == a.Key
}

// isOpen reports whether i can be used.
func (i *Invitation) isOpen(now time.Time) bool {
	return i.Member == "" && !i.Void && !now.After(i.Expires)
}

// OpenInvitations returns the number of invitations that can be used.
func (r *Register) OpenInvitations(now time.Time) (n int) {
	for _, i := range r.invitations {
		if i.isOpen(now) {
			n++
		}
	}
	return n
}
