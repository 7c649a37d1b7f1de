package waypoint

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// table keeps the kernel's table equal to the leases. It owns the table's other parts.
type table struct {
	kernel rules.Kernel
	leases *lease.Leases
	// converted makes the kernel track the converter's connections anew, if there is a converter.
	converted func() error
	problems  problems
	log       *slog.Logger

	rest      rules.State // without mappings, admissions and members
	outOfStep bool        // the table differs from the leases, because it could not be written
	// Until await, members may return whose leases were lost with the table. awaited has their ids.
	await   time.Time
	awaited []rules.MemberID
}

// returning is the time in which members may request their leases again, after these were lost with the table.
const returning = 30 * time.Second

// begin installs a table where there was none, or one without members. The converter may already have connections. They
// are those of members with remembered ids, because others get another id, which is not in the marks of these connections.
func (t *table) begin(now time.Time) error {
	t.await, t.awaited = now.Add(returning), slices.Sorted(maps.Values(t.leases.IDs()))
	t.restart()
	return t.install()
}

// restart makes the kernel track the converter's connections anew, for a new table.
func (t *table) restart() {
	if err := t.converted(); err != nil {
		t.log.Warn("the converter's connections may be reset", "err", err)
	}
}

// unawait rejects from now on what the converter's open connections for a member send, unless the member is admitted.
func (t *table) unawait(id rules.MemberID) error {
	i := slices.Index(t.awaited, id)
	if i < 0 {
		return nil
	}
	t.awaited = slices.Delete(t.awaited, i, i+1)
	return t.commit(rules.Change{Unawait: []rules.MemberID{id}})
}

// commit writes a change to the kernel's table, which the leases have already.
func (t *table) commit(change rules.Change) error {
	return t.write(func() error { return t.kernel.Commit(change) })
}

// write runs a transaction whose result the leases have already. If it fails, write reconciles table and
// leases and tries again. If that fails, too, it writes the whole table anew.
func (t *table) write(transaction func() error) error {
	err := transaction()
	if err == nil {
		return nil
	}
	if err = t.reconcile(err); err == nil {
		err = transaction()
	}
	if err == nil {
		return nil
	}
	t.log.Warn("cannot change the nftables table; writing all of it", "err", err)
	return t.install()
}

// install replaces the table by one that equals the leases.
func (t *table) install() error {
	now := time.Now()
	state := t.leases.State(now)
	rest := t.rest
	if rest.Await = max(t.await.Sub(now), 0); rest.Await > 0 {
		rest.Awaited = t.awaited
	}
	rest.Mappings, rest.Admissions, rest.Members = state.Mappings, state.Admissions, state.Members
	if err := t.kernel.Install(rest); err != nil {
		t.outOfStep = true
		t.problems.set(problemTable, err.Error())
		return err
	}
	t.leases.Installed()
	t.outOfStep = false
	t.problems.clear(problemTable)
	return nil
}

// reconcile makes table and leases equal after a transaction failed. It writes a table that is gone, and
// reads one that exists.
func (t *table) reconcile(cause error) error {
	t.log.Warn("the nftables table and the leases differ", "cause", cause)
	restored, err := t.restore()
	if err != nil || restored {
		return err
	}
	state, _, err := t.kernel.Load()
	if err != nil {
		return err
	}
	t.leases.Merge(state, time.Now())
	return nil
}

// check writes the table again if somebody removed or replaced it, or if it could not be written before.
func (t *table) check() {
	if t.outOfStep {
		_ = t.install() // install records the problem
		return
	}
	if _, err := t.restore(); err != nil {
		t.problems.set(problemTable, err.Error())
	}
}

func (t *table) restore() (restored bool, err error) {
	present, err := t.kernel.Present()
	if err != nil || present {
		return false, err
	}
	t.restart()
	if err := t.install(); err != nil {
		return false, fmt.Errorf("restore the nftables table that another program removed or replaced: %w", err)
	}
	t.log.Warn("another program removed or replaced the nftables table; it has been restored")
	return true, nil
}

func (t *table) setForbidden(ranges []egress.Range) error {
	t.rest.Forbidden = ranges
	return t.write(func() error { return t.kernel.SetForbidden(ranges) })
}

func (t *table) setTunnelInterfaces(names []string) error {
	t.rest.TunnelInterfaces = slices.Sorted(slices.Values(names))
	return t.write(func() error { return t.kernel.SetTunnelInterfaces(t.rest.TunnelInterfaces) })
}

func (t *table) setClosed(closed bool) error {
	return t.write(func() error { return t.kernel.SetClosed(closed) })
}

// stop sets the members that may open no connections now. unnamed are members for whose servers the log has no room, and
// closed are members that their own terms stop. All other members may open connections. stop is called each second.
// connections_per_second bounds the connections that a member opens before that, so the log can name these, too.
func (t *table) stop(unnamed, closed []string) {
	var now []rules.MemberID
	for _, name := range slices.Concat(unnamed, closed) {
		if m := t.leases.Known(name); m != nil {
			now = append(now, m.ID)
		}
	}
	slices.Sort(now)
	now = slices.Compact(now)
	before := t.rest.Stopped
	if slices.Equal(now, before) {
		return
	}
	t.rest.Stopped = now
	if err := t.write(func() error { return t.kernel.SetStopped(now) }); err != nil {
		t.rest.Stopped = before // so that the next call tries again
		t.log.Error("members cannot be stopped from opening connections, or allowed again", "err", err)
		return
	}
	for _, id := range now {
		if member := t.leases.Member(id).Name; !slices.Contains(before, id) && slices.Contains(unnamed, member) {
			t.log.Warn("a member has used so many servers beyond its share of the log that it may open no connections for some minutes",
				"member", member)
		}
	}
}
