package path

// This file tells what carries a connection's data once one of its subflows stops. How certain that must be depends on
// what happens to the subflow:
//
//   - It is set aside, or gives its place to another waypoint, because the connection gains by that (burden.go, omit.go,
//     tryout.go). Another subflow must carry (carriesWithout). If that one stalls, the first is called up (stall.go).
//   - It becomes a backup until its queue has drained, before a limit begins (limit.go). A subflow that stands by for the
//     policy is enough, because the policy then lets it carry (mayCarryWithout).
//   - Its budget is used up (spend.go). It should stop in any case, so whatever else can carry is enough (handOver).
//   - The connection has more subflows than its policy allows (surplus.go). It ends for good and nobody needs it to, so
//     another must surely work (handOver).
//   - It is leaving (leave.go). It will end soon anyway, so a backup that works is enough.

// isLive reports whether the subflow is established, is at an address that this host has, and is not to end.
func (t turn) isLive(s *subflow) bool { return s.up && !s.leaving && t.host.hasSource(s) }

// works reports whether the subflow stays, and its last sample shows no retransmission that waits for an answer.
func (t turn) works(s *subflow) bool { return t.isLive(s) && s.stayed(t.now) && s.backoff == 0 }

// surelyWorks reports whether the subflow works and nothing speaks against it. After a stall, it must have been heard again.
func (t turn) surelyWorks(s *subflow) bool {
	return t.works(s) && !s.distrusted() && (t.attention == nil || s.lastAnswer().After(t.attention.stalls.calledUp))
}

// carriesWithout reports whether a subflow other than s carries, and works.
func (w weighing) carriesWithout(s *subflow) bool {
	return w.has(func(x *subflow) bool { return x != s && w.ours(x) && w.works(x) && !x.backup })
}

// mayCarryWithout reports whether a subflow other than s carries, or stands by, and is neither stuck nor over its budget.
func (m *Manager) mayCarryWithout(t turn, s *subflow) bool {
	return t.has(func(x *subflow) bool {
		return x != s && t.ours(x) && (!x.backup || x.standby) && x.stayed(t.now) && !t.stuck(x) && !m.detours.isSpent(t, x)
	})
}

// handOver makes sure that a subflow other than s carries that is fit, and reports whether there is one. If only a direct
// path is fit that was set aside, it carries again.
func (t turn) handOver(s *subflow, fit func(*subflow) bool) bool {
	if t.has(func(x *subflow) bool { return x != s && !x.backup && fit(x) }) {
		return true
	}
	direct := t.find(func(x *subflow) bool { return x != s && x.direct && x.setAside() && fit(x) })
	if direct != nil {
		t.carryAgain(direct)
	}
	return direct != nil
}
