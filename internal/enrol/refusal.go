package enrol

import (
	"fmt"
	"time"
)

// Reason is the kind of a refusal, and a target of errors.Is.
type Reason string

// Reasons. A coordinator of a later version may have others.
const (
	Malformed       Reason = "malformed"        // the request cannot be understood
	OtherCollective Reason = "other-collective" // the request is for another collective
	TokenUnknown    Reason = "token-unknown"
	TokenUsed       Reason = "token-used"
	TokenExpired    Reason = "token-expired"
	NameTaken       Reason = "name-taken"   // see Refusal.Proposal
	NameDiffers     Reason = "name-differs" // than the invitation's, see Refusal.Proposal
	KeyTaken        Reason = "key-taken"    // another member has this key
	ClockWrong      Reason = "clock-wrong"
	NotMember       Reason = "not-member" // no member has this name and key, or its certificate ended long ago
	Expelled        Reason = "expelled"
	TooMany         Reason = "too-many"    // requests; see Refusal.After
	Unavailable     Reason = "unavailable" // this coordinator cannot do it now
)

// Error implements error.
func (r Reason) Error() string { return string(r) }

// Refusal is a coordinator's refusal.
type Refusal struct {
	Reason Reason `json:"reason"`
	// Why explains the refusal, with names and times.
	Why string `json:"why"`
	// Proposal is a free name, or the one that the invitation is for.
	Proposal string `json:"proposal,omitempty"`
	// After is the number of seconds after which to ask again; 0: none is given.
	After int `json:"after,omitempty"`
	// Off is this host's clock minus the coordinator's. It is not sent.
	Off time.Duration `json:"-"`
}

// Refuse returns a refusal.
func Refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Why: fmt.Sprintf(format, args...)}
}

func (r *Refusal) Error() string {
	if fix := r.Fix(); fix != "" {
		return r.Why + "; " + fix
	}
	return r.Why
}

// Unwrap returns the reason.
func (r *Refusal) Unwrap() error { return r.Reason }

// Fix returns a sentence on what the user can do about the refusal.
func (r *Refusal) Fix() string {
	switch r.Reason {
	case OtherCollective, TokenUnknown, TokenUsed, TokenExpired:
		return "get a new invitation (dcol invite, on the coordinator)"
	case NameTaken, NameDiffers:
		if r.Proposal != "" {
			return "join as " + r.Proposal + ", or get an invitation with the right name"
		}
		return "choose another name"
	case KeyTaken:
		return "move this host's key away, so that dcol join makes a new one; two hosts cannot share a key"
	case ClockWrong:
		return "set the clock right, then try again"
	case NotMember:
		return "join again with a new invitation (dcol invite, on the coordinator)"
	case Expelled:
		return "ask the operator of the collective"
	case TooMany, Unavailable:
		if r.After > 0 {
			return fmt.Sprintf("try again in %v", time.Duration(r.After)*time.Second)
		}
		return "try again later"
	case Malformed:
		return "use the same version of dcol on both hosts"
	}
	return ""
}
