package waypoint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// adoptTable takes over the mappings that the kernel holds, without touching them if the table's
// rules are those we would write, else by putting a new table in the old one's place.
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
	forbidden := w.takeForbidden()
	if !same || !w.forbidsSame(state) || !slices.Equal(w.guarded4, state.Guarded4) || !slices.Equal(w.guarded6, state.Guarded6) {
		w.recordRemoved(forbidden)
		return w.kernel.rules.Install(w.state())
	}
	return w.remove(forbidden)
}

// forbidsSame tells whether the table forbids what we would.
func (w *Waypoint) forbidsSame(state rules.State) bool {
	want := w.state()
	return slices.Equal(want.Forbidden, state.Forbidden) && slices.Equal(want.ForbiddenPorts, state.ForbiddenPorts)
}

func (w *Waypoint) deniedPorts() []uint16 {
	ports := slices.Clone(w.config.DenyPorts)
	slices.Sort(ports)
	return slices.Compact(ports)
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
		if w.members.byID[m.ID] == nil && w.members.known(m.Name) == nil {
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
		Forbidden: w.policy.Forbidden(slices.Collect(maps.Keys(w.own))), ForbiddenPorts: w.deniedPorts()}
	for _, at := range w.passes.presences() {
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

// reconcile brings table and index together after a transaction failed: a table that is gone is
// written again, one that is there is read again.
func (w *Waypoint) reconcile(cause error) error {
	w.log.Warn("the table and the index differ", "cause", cause)
	restored, err := w.restoreTable()
	if err != nil || restored {
		return err
	}
	state, _, err := w.kernel.rules.Load()
	if err != nil {
		return err
	}
	w.merge(state)
	return nil
}

// checkTable writes the table again if somebody removed it.
func (w *Waypoint) checkTable() {
	restored, err := w.restoreTable()
	switch {
	case err != nil:
		w.problems.set(problemTable, err.Error())
	case restored:
		w.problems.clear(problemTable)
	}
}

func (w *Waypoint) restoreTable() (restored bool, err error) {
	present, err := w.kernel.rules.Present()
	if err != nil || present {
		return false, err
	}
	if err := w.kernel.rules.Install(w.state()); err != nil {
		return false, fmt.Errorf("write the table again that somebody removed: %w", err)
	}
	for _, m := range w.members.all() {
		m.saved = true
	}
	w.log.Warn("somebody removed the nftables table; it is written again", "mappings", w.index.len())
	return true, nil
}

// expiryGrace makes the index forget a mapping surely after the kernel did, whose clock ticks in
// jiffies and whose element was written later.
const expiryGrace = time.Second

// expire forgets the mappings that the kernel has dropped by itself.
func (w *Waypoint) expire() {
	now := time.Now()
	w.endPasses(func(p *pass) bool { return !p.expires.After(now.Add(-expiryGrace)) })
	w.expireTunnels(now)
	for m := w.index.expire(now.Add(-expiryGrace)); m != nil; m = w.index.expire(now.Add(-expiryGrace)) {
		w.record.Write(w.mappingEntry(attribution.MappingExpired, now, m))
	}
}

// addressesChanged removes mappings that lead to what is now an address of this host.
func (w *Waypoint) addressesChanged() {
	changed, err := w.readOwn()
	w.attach()
	if err != nil {
		w.log.Warn("cannot read the host's addresses", "err", err)
		return
	}
	if !changed {
		return
	}
	if err := w.kernel.rules.SetForbidden(w.state().Forbidden); err != nil {
		w.log.Error("detours may lead to this host itself", "err", err)
	}
	if err := w.remove(w.takeForbidden()); err != nil {
		w.log.Error("mappings lead to this host itself", "err", err)
	}
}

// attach has SYNs looked at on every interface by which members may come.
func (w *Waypoint) attach() {
	if w.kernel.receiver == nil {
		return
	}
	list, err := w.kernel.interfaces()
	if err == nil {
		var outside []int
		for _, i := range list {
			if !i.Loopback && !slices.Contains(w.tunnelInterfaces, i.Name) {
				outside = append(outside, i.Index)
			}
		}
		err = w.kernel.receiver.Attach(outside)
	}
	if err != nil {
		w.log.Warn("in-band SYNs are not looked at on some interfaces", "err", err)
	}
}

func (w *Waypoint) readOwn() (changed bool, err error) {
	list, err := w.kernel.own()
	if err != nil {
		return false, err
	}
	own := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		own[a.Addr] = true
	}
	changed = !maps.Equal(own, w.own)
	w.own = own
	return changed, nil
}

// takeForbidden takes the mappings out of the index that the policy forbids now: after a restart
// with another policy, or when the host got a server's address.
func (w *Waypoint) takeForbidden() []rules.Mapping {
	return w.take(func(m *mapping) bool { return w.policy.Check(m.server, w.isOwn) != nil })
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
	err := w.kernel.rules.Commit(rules.Change{Remove: list})
	if err != nil {
		// Not as we thought; a table written from the index lacks them for sure.
		w.log.Warn("cannot remove mappings; writing the table again", "err", err)
		err = w.kernel.rules.Install(w.state())
	}
	if err != nil {
		w.problems.set(problemTable, err.Error())
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

// Expel ends a member's use of this waypoint at once: its mappings go, and its connections break.
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
	w.endPasses(func(p *pass) bool { return p.member == m })
	var addrs []netip.Addr
	for a, t := range w.tunnels {
		if t.member == m {
			addrs = append(addrs, a)
		}
	}
	if err := w.revokeTunnel(addrs); err != nil {
		return fmt.Errorf("expel %s: %w", name, err)
	}
	removed := w.take(func(x *mapping) bool { return x.member == m.ID })
	if err := w.remove(removed); err != nil {
		return fmt.Errorf("expel %s: %w", name, err)
	}
	w.flowsMu.Lock()
	err := w.kernel.flows.Delete(rules.Of(m.ID))
	w.flowsMu.Unlock()
	if err != nil {
		return fmt.Errorf("expel %s: %w", name, err)
	}
	w.record.Write(attribution.Entry{Time: time.Now(), Event: attribution.MemberExpelled, Member: m.Name, Serial: m.Serial})
	w.log.Info("member expelled", "member", name, "mappings", len(removed))
	return nil
}
