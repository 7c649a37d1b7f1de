package membership

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// renewal decides when the certificate is renewed.
type renewal struct {
	failures int
	refusals int       // of the bus, in a row
	notUntil time.Time // after a failure
	told     time.Time // until when a coordinator wants not to be asked
	needed   bool      // now, whatever the certificate says: there is no JWT, or it is of no use
	jwt      life
}

// life is from when until when something counts.
type life struct{ from, until time.Time }

// at is when to ask for a new certificate, and with it for a JWT. usable: the one there is can be used. It
// may be newer than the JWT: a coordinator renews its own by itself, and people can do so by hand.
func (r *renewal) at(self collective.Member, usable bool) time.Time {
	due := time.Time{}
	if usable && !r.needed {
		due = earlier(
			collective.RenewAt(self.NotBefore, self.NotAfter, spreadOf(self)),
			collective.RenewAt(r.jwt.from, r.jwt.until, spreadOf(self)),
		)
	}
	return later(due, r.notUntil)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// failed notes a try that brought nothing; after is how long not to ask again, if the coordinator has said
// that. chance is from 0 to 1.
func (r *renewal) failed(self collective.Member, now time.Time, after time.Duration, chance float64) {
	r.failures++
	retry := collective.RetryAt(self.NotAfter, now, r.failures, chance)
	if soon := now.Add(firstUrgentPause << min(r.failures-1, 10)); r.needed && soon.Before(retry) {
		retry = soon
	}
	r.told = now.Add(after)
	r.notUntil = later(retry, r.told)
}

// firstUrgentPause is how soon a host tries again that cannot use the bus, doubled until it is what others
// wait.
const firstUrgentPause = time.Second

// hurry has a try that failed repeated now: this host is on another network. Where a coordinator has said
// when to ask again, that stands.
func (r *renewal) hurry(now time.Time) {
	if r.failures > 0 && r.told.Before(now) && r.notUntil.After(now) {
		r.notUntil = now
	}
}

func (r *renewal) succeeded() { r.failures, r.needed, r.notUntil = 0, false, time.Time{} }

const (
	firstRefusalPause = time.Minute
	lastRefusalPause  = time.Hour
)

// notLetIn: the bus takes our JWT no more. Another may help; one that was given just now need not.
func (r *renewal) notLetIn(now time.Time) {
	if r.needed {
		return
	}
	if r.needed = true; r.refusals > 0 {
		r.notUntil = later(r.notUntil, now.Add(min(firstRefusalPause<<min(r.refusals-1, 10), lastRefusalPause)))
	}
	r.refusals++
}

// letIn: the JWT is good.
func (r *renewal) letIn() { r.needed, r.refusals = false, 0 }

// spreadOf is a member's own part, from 0 to 1, of the time within which to renew: another one with each
// certificate, and the same after a restart.
func spreadOf(self collective.Member) float64 {
	sum := sha256.Sum256([]byte("dcol renewal\n" + self.Name + "\n" + self.Serial))
	return float64(binary.BigEndian.Uint64(sum[:])) / math.MaxUint64
}
