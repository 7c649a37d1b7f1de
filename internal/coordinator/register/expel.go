package register

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Expel ends a membership. Revoking certificates and telling members follow from this entry.
func (r *Register) Expel(name, why string, now time.Time) (*Entry, error) {
	switch m := r.Member(name); {
	case m == nil:
		return nil, fmt.Errorf("expel %s: there is no such member; dcol members lists them", name)
	case m.IsMember():
		return &Entry{Member: m.ended(Expulsion{At: now.UTC(), Why: why})}, nil
	case m.Expelled.Left: // and may not come back
		expelled := *m.Expelled
		expelled.Left, expelled.Why = false, why
		return &Entry{Member: m.ended(expelled)}, nil
	}
	return &Entry{}, nil
}

// whyLeft is the reason of an expulsion that the member has asked for.
const whyLeft = "it has left"

// Leave ends the membership of the host with this key, as it asks. It returns the name of the member. What follows is the
// same as after Expel.
func (r *Register) Leave(key collective.PublicKey, now time.Time) (name string, e *Entry, err error) {
	switch m := r.members.holder(key); {
	case m == nil:
		return "", nil, enrol.Refuse(enrol.NotMember, "no member has this key")
	case m.isBanned():
		return "", nil, refuseExpelled(m)
	case m.IsMember():
		return m.Name, &Entry{Member: m.ended(Expulsion{At: now.UTC(), Why: whyLeft, Left: true})}, nil
	default: // the answer was lost
		return m.Name, &Entry{}, nil
	}
}

// Complete records that all members were told of an expulsion, and until when certificates may be valid that
// could not be revoked.
func (r *Register) Complete(name string, counts time.Time) *Entry {
	m := r.Member(name)
	if m == nil || m.Expelled == nil || m.Expelled.Done && m.Expelled.Counts.Equal(counts) {
		return &Entry{}
	}
	done := *m.Expelled
	done.Done, done.Counts = true, counts
	return &Entry{Member: m.ended(done)}
}

// Unfinished returns the names of expelled members whose expulsion some members have not been told yet.
func (r *Register) Unfinished() (names []string) {
	for _, m := range r.Members() {
		if m.Expelled != nil && !m.Expelled.Done {
			names = append(names, m.Name)
		}
	}
	return names
}
