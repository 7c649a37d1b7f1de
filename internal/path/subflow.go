package path

import (
	"errors"
	"net/netip"
	"time"
)

// joinTimeout is the longest wait for the answer to a SYN. The kernel would retry for two minutes, in which another
// detour can be used.
const joinTimeout = 4 * time.Second

// subflow is one subflow of a connection, established or joining.
type subflow struct {
	id      uint8
	direct  bool
	try     bool // over an unproven detour
	backup  bool
	up      bool
	leaving bool   // to be ended once the connection has another
	standby bool   // a backup because the policy wants it
	empties bool   // stands by until its queue has drained, because a limit is to begin
	foreign bool   // created by the peer or by an earlier agent, so its id may equal one of ours
	counted bool   // its beginning counts in the budget of exploring
	asked   bool   // samples were requested to compare it with other paths (far.go)
	backoff uint8  // doublings of its retransmission timer at the last sample
	network uint32 // hostAddrs.network when it started
	sampled uint32 // number of the last complete sample that included it; 0: none

	local, remote netip.AddrPort // local is incomplete until the kernel has chosen
	detour        *Detour        // nil for the direct path and for an unrecognised one
	why           *chosen        // why the detour was chosen; nil: this manager did not choose it
	told          told           // of backup, to the peer (priority.go)
	since         time.Time
	took          time.Duration // duration of the join

	received, acked uint64 // payload; acked includes what was acknowledged beyond missing data
	flow            flow
	moved           time.Time // when received or acked last grew

	senses
	pace      *pace         // nil unless its rule replaces slow subflows
	suspicion *suspicion    // nil: never suspected
	aside     *aside        // nil: never set aside
	crowded   time.Duration // its age when it was marked for an exchange; 0: it is not
}

// ended is a subflow that ended. It is not known yet whether its connection ended, too.
type ended struct {
	*subflow
	err    error
	lived  time.Duration
	unsent bool // no SYN was sent, because the kernel refused
	silent bool // ended without a kernel event
	// after and failedBefore are set for a silent end: the number of the last complete sample, and the number of
	// failed checksums when the subflow was last known to exist.
	after        uint32
	failedBefore uint64
	adrift       bool // its source address may have been gone, so the peer may not know of its end
	settled      bool // its bytes are counted, or wait for its last counters
	judge        time.Time
}

func (s *subflow) cameUp(now time.Time) {
	s.up, s.took, s.since, s.moved = true, now.Sub(s.since), now, now
}

// timeout returns when an unanswered join is aborted.
func (s *subflow) timeout() time.Time {
	if s.try {
		return s.since.Add(tryTimeout)
	}
	return s.since.Add(joinTimeout)
}

// waits reports whether s is an established detour that waits for the server's first data on a TLS connection.
func (s *subflow) waits() bool {
	return s.up && s.backup && s.detour != nil && !s.doubts().demoted && !s.setAside() && !s.standby
}

// carried reports whether payload was transferred. Linux counts the SYN as one acknowledged byte.
func (s *subflow) carried() bool { return s.received > 0 || s.acked > 1 }

// stays returns the age from which an established subflow is known to stay. The server closes a surplus one within a
// round trip. The join took at least one round trip. If it took a second or more, the SYN was perhaps repeated (RFC
// 6298, section 2).
func (s *subflow) stays() time.Duration { return max(verdictDelay, 2*min(s.took, time.Second)) }

// isCrowded reports whether the detour is to be exchanged for another.
func (s *subflow) isCrowded() bool { return s.crowded > 0 }

// isChanging reports whether the subflow is a detour that joins, ends or is to be exchanged.
func (s *subflow) isChanging() bool { return s.detour != nil && (!s.up || s.leaving || s.isCrowded()) }

// crowdedAt returns when the detour was marked for an exchange.
func (s *subflow) crowdedAt() time.Time { return s.since.Add(s.crowded) }

// crowd marks a detour for an exchange.
func (s *subflow) crowd(now time.Time) { s.crowded = max(now.Sub(s.since), 1) }

// stayed reports whether the subflow is known not to be surplus.
func (s *subflow) stayed(now time.Time) bool {
	return s.up && (s.carried() || now.Sub(s.since) >= s.stays())
}

// refusedDirect reports whether this was a direct path that was to join again, and the server or a middlebox refused it.
func (e *ended) refusedDirect() bool {
	return e.direct && (e.full() || !e.up && !e.unsent && !e.adrift && !errors.Is(e.err, errNoAnswer))
}

// full reports whether the server closed the subflow because it accepts no more. If the subflow's address was gone,
// that is not known: the subflow ended for another reason, and the server may still count it.
func (e *ended) full() bool {
	return e.up && !e.adrift && e.err == nil && e.id != 0 && (e.direct || e.detour != nil) && !e.carried() && e.lived < e.stays()
}
