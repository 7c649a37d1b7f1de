package waypoint

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// admit makes the kernel admit the member of a grant, and check its key. If that fails, it takes the grant back.
func (l *loop) admit(a *lease.Admitting) error {
	err := l.end(a.Before)
	if err == nil {
		err = l.table.commit(a.Change)
	}
	if err == nil {
		a.Written()
		err = l.writeKeys(a.Keys)
	}
	if err != nil {
		_ = l.end(a.Undo()) // end logs its failure
		return err
	}
	for _, e := range a.Granted() {
		l.record.Write(e)
	}
	return nil
}

// end removes ended leases from the kernel, ends their connections in tunnels, and writes their end to the log. It logs its
// failure.
func (l *loop) end(e lease.Ending) error {
	defer l.tellIncoming()
	err := l.writeKeys(e.Keys)
	for _, entry := range e.Entries {
		l.record.Write(entry)
	}
	if !e.Changes() {
		return err
	}
	commit := l.table.commit(e.Change)
	if commit == nil && len(e.Tunnels) > 0 {
		_, commit = l.connections.end(l.config.marks().Ours(), e.Tunnels...)
	}
	if err = errors.Join(err, commit); err != nil {
		l.log.Error("leases have expired, but some of their connections or rules remain", "err", err)
		return fmt.Errorf("end leases: %w", err)
	}
	return nil
}

// writeKeys gives the eBPF program the keys of addresses.
func (l *loop) writeKeys(addrs []netip.Addr) error {
	var errs []error
	for _, addr := range addrs {
		errs = append(errs, l.filters.writeKeys(addr))
	}
	return errors.Join(errs...)
}

// expire ends the leases whose entries the kernel has dropped by itself.
func (l *loop) expire(now time.Time) { _ = l.end(l.leases.Expire(now)) } // end logs its failure

// addressesChanged reads this host's interfaces, addresses and links again.
func (l *loop) addressesChanged(now time.Time) {
	l.filters.attach(l.table.rest.TunnelInterfaces, now)
	changed, err := l.surroundings.look()
	if err != nil {
		l.log.Warn("cannot read the host's addresses and routes", "err", err)
		return
	}
	if changed {
		l.surroundingsChanged(now)
	}
}

// outsideChanged records this host's external addresses.
func (l *loop) outsideChanged(o egress.Outside) {
	if !l.surroundings.hear(o) {
		return
	}
	l.log.Info("the address at which others see this host has changed", "addresses", o.NATs, "known", !o.Hidden)
	l.surroundingsChanged(time.Now())
}

// surroundingsChanged forbids detours to this host's present addresses and neighbours, and ends those that lead there.
func (l *loop) surroundingsChanged(now time.Time) {
	policy := l.surroundings.policy
	if err := l.table.setForbidden(policy.Forbidden()); err != nil {
		l.log.Error("detours may lead to this host itself, or to its neighbours", "err", err)
	}
	_ = l.end(l.leases.EndForbidden(policy, l.limited.servers, now)) // end logs its failure
}
