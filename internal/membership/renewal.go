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
	told     time.Time // a coordinator does not want to be asked before
	needed   bool      // the JWT is missing or refused, so renew now
	jwt      life
}

// life is the time within which something is valid.
type life struct{ from, until time.Time }

// at returns when to request a new certificate and JWT. Usable reports whether the certificate is. It may be newer than
// the JWT: a coordinator renews its own by itself, and people can do so by hand.
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

// failed records a failed try. After is how long the coordinator does not want to be asked, if it has said so. Chance is
// a random number from 0 to 1.
func (r *renewal) failed(self collective.Member, now time.Time, after time.Duration, chance float64) {
	r.failures++
	retry := collective.RetryAt(self.NotAfter, now, r.failures, chance)
	if soon := now.Add(firstUrgentPause << min(r.failures-1, 10)); r.needed && soon.Before(retry) {
		retry = soon
	}
	r.told = now.Add(after)
	r.notUntil = later(retry, r.told)
}

// firstUrgentPause is how soon a host that cannot use the bus tries again. It doubles up to the usual pause.
const firstUrgentPause = time.Second

// hurry repeats a failed try now, as this host is on another network, but not before a coordinator wants to be asked.
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

// notLetIn records that the bus refuses the JWT. Another may help, unless this one is quite new.
func (r *renewal) notLetIn(now time.Time) {
	if r.needed {
		return
	}
	if r.needed = true; r.refusals > 0 {
		r.notUntil = later(r.notUntil, now.Add(min(firstRefusalPause<<min(r.refusals-1, 10), lastRefusalPause)))
	}
	r.refusals++
}

// letIn records that the bus has accepted the JWT.
func (r *renewal) letIn() { r.needed, r.refusals = false, 0 }

// spreadOf returns a member's own part, from 0 to 1, of the time within which to renew. It differs for each certificate,
// and is the same after a restart.
func spreadOf(self collective.Member) float64 {
	sum := sha256.Sum256([]byte("dcol renewal\n" + self.Name + "\n" + self.Serial))
	return float64(binary.BigEndian.Uint64(sum[:])) / math.MaxUint64
}
