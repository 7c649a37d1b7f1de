package waypoint

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/flows"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// newLoop builds the parts, each after those that it needs. It reads and changes nothing.
func newLoop(config Config, policy *egress.Policy, k kernel, log *slog.Logger) *loop {
	l := &loop{config: config, kernel: k, log: log, problems: make(problems), leases: lease.New(config.terms())}
	l.record = attribution.Open(config.Log, config.Author, attribution.DefaultLimits, log)
	l.filters = &filters{
		receiver: k.receiver, fast: k.fast, interfaces: k.interfaces, leases: l.leases, problems: l.problems, log: log,
		stale: make(map[netip.Addr]bool),
	}
	l.connections = &connections{
		flows: flows.New(l.owner, k.timeouts.keepEvery()), record: l.record, marks: config.marks(), fastKernel: k.fastKernel, conntrack: k.flows, log: log,
	}
	converted := func() error { return nil }
	if config.Converter != nil {
		converted = l.connections.restartConverted
	}
	l.table = &table{kernel: k.rules, leases: l.leases, converted: converted, problems: l.problems, log: log}
	l.giver = &giver{
		terms: giving.Terms{Hours: config.Hours, Quota: config.Quota}, table: l.table, connections: l.connections, problems: l.problems,
		tell: config.Tell, log: log, file: &memoryFile{path: config.Memory},
	}
	l.limited = newLimited(config.Members, l.giver, log)
	l.surroundings = &surroundings{
		own: k.own, onLink: k.onLink, listeners: k.listeners, reserved: k.reserved, log: log, policy: policy,
	}
	return l
}

// owner returns the member that caused a connection, and the session in which it requested the lease for it. It reports false
// if the connection is no member's.
func (l *loop) owner(f netstate.Flow) (flows.Owner, bool) {
	id, kind, ours := l.config.marks().OfMark(f.Mark)
	m := l.leases.Member(id)
	by := l.leases.AskedBy(id, kind, f.Origin.Src.Addr(), f.Origin.Dst.Port())
	return flows.Owner{Member: id, Name: m.Name, Serial: m.Serial, By: by, Kind: kind}, ours
}

// adopt takes over the table, the connections and the saved state of an earlier agent, if there are any.
func (l *loop) adopt(now time.Time) error {
	if err := l.readSurroundings(); err != nil {
		return err
	}
	if err := l.giver.remember(); err != nil {
		return err
	}
	if err := l.adoptTable(now); err != nil {
		return err
	}
	l.tellIncoming()
	l.restoreSessions()
	l.giver.check(now)
	l.giver.announce()
	l.filters.dropForeignKeys()
	l.filters.attach(l.table.rest.TunnelInterfaces, now)
	if err := l.connections.adopt(l.config.Counts); err != nil || !l.limited.counting() {
		return err
	}
	counted, err := l.connections.counted()
	if err != nil {
		return err
	}
	l.limited.begin(l.bytes(counted))
	l.checkLimited(now)
	return nil
}

func (l *loop) readSurroundings() error {
	if _, err := l.surroundings.look(); err != nil {
		return err
	}
	select {
	case o := <-l.config.Outside:
		l.surroundings.hear(o)
	default: // not known yet
	}
	return nil
}

// adoptTable takes over the leases in the kernel's table. It leaves the table as it is if its rules are those that we would
// write, and replaces it otherwise.
func (l *loop) adoptTable(now time.Time) error {
	state, same, err := l.kernel.rules.Load()
	if err != nil {
		return err
	}
	rest := &l.table.rest
	rest.Guarded4 = guarded(l.kernel.guard4, state.Guarded4)
	rest.Guarded6 = guarded(l.kernel.guard6, state.Guarded6)
	rest.TunnelInterfaces, rest.Stopped = state.TunnelInterfaces, state.Stopped
	rest.Forbidden, rest.ForbiddenPorts = l.surroundings.policy.Forbidden(), l.config.deniedPorts()
	l.leases.Adopt(state, l.filters.left(state.Admissions), now)
	l.leases.RememberIDs(l.giver.memory.IDs)
	l.leases.AdoptPorts(l.giver.memory.Incoming, now)
	l.giver.adopt(state.Closed, state.Used, now)
	forbidden := l.leases.EndForbidden(l.surroundings.policy, l.limited.servers, now)
	if same && sameRest(*rest, state) {
		return l.end(forbidden)
	}
	for _, e := range forbidden.Entries {
		l.record.Write(e)
	}
	if len(state.Members) == 0 {
		return l.table.begin(now)
	}
	return l.table.install()
}

// sameRest reports whether a table has the same forbidden addresses, forbidden ports and guarded interfaces as we would write.
// The other parts beside leases can be set later.
func sameRest(want, has rules.State) bool {
	return slices.Equal(want.Forbidden, has.Forbidden) && slices.Equal(want.ForbiddenPorts, has.ForbiddenPorts) &&
		slices.Equal(want.Guarded4, has.Guarded4) && slices.Equal(want.Guarded6, has.Guarded6)
}

// guarded returns the interfaces from which strangers' packets are not forwarded. now has none if forwarding was on before
// us. If the table still has those of the time when we switched forwarding on, they stay.
func guarded(now, then []string) []string {
	if len(now) > 0 && len(then) > 0 {
		return then
	}
	return now
}

// restoreSessions finds in the log the sessions in which an earlier agent's leases were requested. The session of a lease that
// is not in the log stays unknown until the lease is renewed.
func (l *loop) restoreSessions() {
	if l.leases.Empty() {
		return
	}
	sessions, err := attribution.Recall(l.config.Log)
	if err != nil {
		l.log.Warn("the sessions of an earlier agent's leases are not known", "err", err)
		return
	}
	l.leases.Restore(sessions)
}
