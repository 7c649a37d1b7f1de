package waypoint

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// adoptTable takes over what the kernel holds, without touching it if the table's rules are those we
// would write, else by putting a new table in the old one's place.
func (w *Waypoint) adoptTable() error {
	state, same, err := w.kernel.rules.Load()
	if err != nil {
		return err
	}
	w.guarded4 = guarded(w.kernel.guard4, state.Guarded4)
	w.guarded6 = guarded(w.kernel.guard6, state.Guarded6)
	w.tunnelInterfaces = state.TunnelInterfaces
	w.merge(state)
	w.adoptPasses(state.Admissions)
	w.adoptTunnels(state.Admissions)
	w.adoptGiven(state)
	w.stopped = state.Stopped
	forbidden := w.takeForbidden()
	if !same || !w.forbidsSame(state) || !slices.Equal(w.guarded4, state.Guarded4) || !slices.Equal(w.guarded6, state.Guarded6) {
		w.recordRemoved(forbidden)
		return w.install()
	}
	return w.remove(forbidden)
}

// forbidsSame tells whether the table forbids what we would.
func (w *Waypoint) forbidsSame(state rules.State) bool {
	return slices.Equal(w.forbidden, state.Forbidden) && slices.Equal(w.deniedPorts(), state.ForbiddenPorts)
}

func (w *Waypoint) deniedPorts() []uint16 {
	return slices.Compact(slices.Sorted(slices.Values(w.config.DenyPorts)))
}

// guarded is which interfaces strangers' packets are not forwarded from: none if forwarding was on
// before us; those of the time when we switched it on, if the table still tells.
func guarded(now, then []string) []string {
	if len(now) > 0 && len(then) > 0 {
		return then
	}
	return now
}

// merge adds to the index what the kernel has and the index lacks.
func (w *Waypoint) merge(state rules.State) {
	for _, m := range state.Members {
		if int(m.ID) <= w.members.most && w.members.byID[m.ID] == nil && w.members.known(m.Name) == nil {
			w.members.add(m, true)
			w.members.lastID = max(w.members.lastID, m.ID)
		}
	}
	now := time.Now()
	for _, m := range state.Mappings {
		if w.index.byKey[m.Key()] != nil || w.index.find(target{m.Member, m.Client, m.Server}) != nil {
			continue
		}
		w.index.add(&mapping{key: m.Key(), server: m.Server, member: m.Member, expires: now.Add(m.Left)})
	}
}

// state is the table as the index has it.
func (w *Waypoint) state() rules.State {
	now := time.Now()
	s := rules.State{Guarded4: w.guarded4, Guarded6: w.guarded6, TunnelInterfaces: w.tunnelInterfaces,
		Forbidden: w.forbidden, ForbiddenPorts: w.deniedPorts(), Closed: w.given.standing.Closed(), Used: w.given.memory.Used.Used(),
		Stopped: w.stopped}
	for at := range w.passes.presences() {
		s.Admissions = append(s.Admissions, w.passes.admission(at, now))
	}
	for a, t := range w.tunnels {
		s.Admissions = append(s.Admissions, t.admission(a, now))
	}
	for _, m := range w.index.byKey {
		if m.expires.After(now) {
			s.Mappings = append(s.Mappings, m.rule(now))
		}
	}
	for _, m := range w.members.all() {
		s.Members = append(s.Members, m.Member)
	}
	return s
}

// expiryGrace makes the index forget a mapping surely after the kernel did, whose clock ticks in
// jiffies and whose element was written later.
const expiryGrace = time.Second

// expire forgets what the kernel has dropped by itself.
func (w *Waypoint) expire() {
	now := time.Now()
	w.expirePasses(now)
	w.expireTunnels(now)
	for m := w.index.expire(now.Add(-expiryGrace)); m != nil; m = w.index.expire(now.Add(-expiryGrace)) {
		w.record.Write(w.mappingEntry(attribution.MappingExpired, now, m))
	}
}

// takeForbidden takes the mappings out of the index that would not be granted any more: the policy forbids their
// servers, as after a restart with another policy, or when the host got a server's address or came near it; or their
// ports are for authenticated SYNs, since an agent that granted them without. What is forbidden only until more is known
// was allowed by an agent that knew. Connections that are open go on.
func (w *Waypoint) takeForbidden() []rules.Mapping {
	return w.take(func(m *mapping) bool {
		err := w.policy.Check(m.server)
		return err != nil && !egress.ForNow(err) || w.guards(m.server) && m.key.Port == m.server.Port()
	})
}

// take takes mappings out of the index and returns them as the kernel has them.
func (w *Waypoint) take(which func(*mapping) bool) []rules.Mapping {
	now := time.Now()
	var taken []rules.Mapping
	for _, m := range w.index.byKey {
		if which(m) {
			taken = append(taken, m.rule(now))
			w.index.remove(m)
		}
	}
	return taken
}

// remove takes mappings out of the kernel that are out of the index already.
func (w *Waypoint) remove(list []rules.Mapping) error {
	if len(list) == 0 {
		return nil
	}
	if err := w.commit(rules.Change{Remove: list}); err != nil {
		return fmt.Errorf("remove mappings: %w", err)
	}
	w.recordRemoved(list)
	return nil
}

func (w *Waypoint) recordRemoved(list []rules.Mapping) {
	now := time.Now()
	for _, m := range list {
		who := w.members.of(m.Member)
		w.record.Write(attribution.Entry{Time: now, Event: attribution.MappingRemoved, Member: who.Name, Serial: who.Serial,
			Client: m.Client, Port: m.Port, Server: m.Server})
	}
}

// Expel ends a member's use of this waypoint at once: its mappings and admissions go, and its
// connections break.
// That its sessions end and none begin is the caller's part, and comes first.
func (w *Waypoint) Expel(name string) error {
	var err error
	asked := w.ask(func() { err = w.expel(name) })
	if asked != nil {
		return fmt.Errorf("expel %s: %w", name, asked)
	}
	return err
}

func (w *Waypoint) expel(name string) error {
	m := w.members.known(name)
	if m == nil {
		return nil
	}
	// What fails is tried again, and nothing waits for it.
	errs := []error{w.endPasses(func(p *pass) bool { return p.member == m }), w.revokeTunnel(w.tunnelsOf(m))}
	removed := w.take(func(x *mapping) bool { return x.member == m.ID })
	errs = append(errs, w.remove(removed))
	if w.outOfStep { // the kernel may have what the index lacks
		errs = append(errs, w.install())
	}
	errs = append(errs, w.leaveFastPathEach(w.config.marks().Of(m.ID), func(netstate.Flow) bool { return true }))
	w.flowsMu.Lock()
	errs = append(errs, w.kernel.flows.Delete(w.config.marks().Of(m.ID)))
	w.flowsMu.Unlock()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("expel %s: %w", name, err)
	}
	w.record.Write(attribution.Entry{Time: time.Now(), Event: attribution.MemberExpelled, Member: m.Name, Serial: m.Serial})
	w.log.Info("member expelled", "member", name, "mappings", len(removed))
	return nil
}
