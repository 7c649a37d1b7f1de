package waypoint

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// This file opens and closes the waypoint, as package giving decides. While it is closed, requests are
// refused, and the kernel resets new connections of every kind. Open connections continue, and so do the
// mappings, admissions and tunnels that they need. When the quota is used up, every connection ends: the
// kernel answers packets beyond the quota with resets, also while no agent runs, and the agent has
// conntrack forget all connections, so that their next packets are reset.
//
// The kernel's table counts the bytes of all kinds of detours, so the count outlives agents. The file in
// memory.go preserves it when the table is gone, after a reboot or when somebody flushed it.

// giver opens and closes the waypoint by the operator's terms, and counts the used part of the quota.
type giver struct {
	terms       giving.Terms
	table       *table
	connections *connections
	problems    problems
	tell        func(giving.Standing)
	log         *slog.Logger

	standing giving.Standing
	closed   bool // in the kernel's table
	ended    bool // all connections, because the quota is used up

	memory  memory
	file    *memoryFile
	edition uint64    // of the memory; each save has the next number
	unsaved bool      // the memory has changed since the last save, or that failed
	saving  bool      // a save is under way, in a goroutine of its own
	saved   time.Time // when the last save began
}

// saveEvery bounds the time whose count is lost in a power cut.
const saveEvery = 30 * time.Second

// remember reads the memory. It must be called before adopt.
func (g *giver) remember() error {
	m, damage, err := readMemory(g.file.path)
	if err != nil {
		return err
	}
	g.memory = m
	if damage != "" {
		g.log.Error("the waypoint is closed", "err", damage)
		g.problems.set(problemDamaged, damage)
		g.unsaved = true
	}
	return nil
}

// adopt takes over the table's state and count.
func (g *giver) adopt(closed bool, used uint64, now time.Time) {
	g.closed = closed
	g.count(used)
	g.stand(now)
}

// count takes in the kernel's count.
func (g *giver) count(used uint64) {
	before := g.memory.Used.Used()
	g.memory.Used.Count(used)
	g.unsaved = g.unsaved || g.memory.Used.Used() > before
}

// noteIDs marks the memory as unsaved if members' ids have changed.
func (g *giver) noteIDs(ids map[string]rules.MemberID) {
	if len(ids) > 0 && !maps.Equal(ids, g.memory.IDs) {
		g.memory.IDs, g.unsaved = ids, true
	}
}

// notePorts marks the memory as unsaved if the ports at which the converter takes connections for members have changed.
func (g *giver) notePorts(list []lease.Port) {
	if !lease.EqualPorts(list, g.memory.Incoming) {
		g.memory.Incoming, g.unsaved = list, true
	}
}

// stand computes the standing. The next table that is installed enforces it.
func (g *giver) stand(now time.Time) {
	used := g.memory.Used.Used()
	g.standing = g.terms.Stand(now, g.memory.Off, used)
	g.table.rest.Closed, g.table.rest.Used = g.standing.Closed(), used
}

// check opens or closes the waypoint, as its terms want it now.
func (g *giver) check(now time.Time) {
	g.countUsed(now)
	if off := g.memory.Off; off != nil && off.Over(now) {
		g.memory.Off, g.unsaved = nil, true
	}
	before := g.standing
	g.stand(now)
	g.writeClosed()
	g.endSpent()
	if !g.standing.Equal(before) {
		g.log.Info("what the waypoint gives has changed", "gives", !g.standing.Closed(), "why", g.standing.Cause, "until", g.standing.Until)
		g.announce()
	}
}

func (g *giver) announce() {
	if g.tell != nil {
		g.tell(g.standing)
	}
}

// countUsed reads the kernel's count, and makes the kernel begin anew with each month.
func (g *giver) countUsed(now time.Time) {
	if g.terms.Quota == 0 {
		return
	}
	err := g.readUsed(giving.MonthOf(now))
	switch _, known := g.problems[problemQuota]; {
	case err == nil:
		g.problems.clear(problemQuota)
	case !known:
		g.log.Error("the quota is not counted", "err", err)
		fallthrough
	default:
		g.problems.set(problemQuota, err.Error())
	}
}

func (g *giver) readUsed(month giving.Month) error {
	kernel, ledger := g.table.kernel, &g.memory.Used
	used, err := kernel.Used()
	if errors.Is(err, unix.ENOENT) {
		g.log.Warn("another program removed the rule that counts for the quota; it has been restored", "err", err)
		return kernel.SetUsed(ledger.Used())
	}
	if err != nil {
		return err
	}
	g.count(used)
	// The month has changed, or somebody has reset the counter.
	begin := ledger.Bytes[month]
	if min(begin, g.terms.Quota) != used || month != ledger.Counting {
		err = kernel.SetUsed(begin)
	}
	if err == nil && month != ledger.Counting {
		ledger.Turn(month)
		g.unsaved, g.saved = true, time.Time{} // save at once: the count in the file is that of the last month
	}
	return err
}

// writeClosed makes the kernel accept new connections, or reset them.
func (g *giver) writeClosed() {
	closed := g.standing.Closed()
	if closed == g.closed {
		return
	}
	if err := g.table.setClosed(closed); err != nil {
		g.log.Error("the waypoint cannot be opened or closed in the kernel", "closed", closed, "err", err)
		return // tried again
	}
	g.closed = closed
}

// endSpent ends all connections when the quota is used up. A host that then sends a packet of such a connection gets a
// reset, and MPTCP continues on other paths. A member that only receives is notified over its session (Tell).
func (g *giver) endSpent() {
	if !g.terms.Spent(g.memory.Used.Used()) {
		g.ended = false
		return
	}
	if g.ended {
		return
	}
	if err := g.connections.endAll(g.connections.marks.Ours()); err != nil {
		g.log.Error("the quota is used up, but connections cannot be ended", "err", err)
		return // tried again
	}
	g.ended = true
}

// switchTo closes the waypoint as off says; nil opens it again.
func (g *giver) switchTo(off *giving.Off) {
	g.memory.Off = off
	g.problems.clear(problemDamaged)
}

// saveDue reports whether it is time to save the memory.
func (g *giver) saveDue(now time.Time) bool {
	return g.unsaved && !g.saving && now.Sub(g.saved).Abs() >= saveEvery
}

// beginSaving returns a function that writes the memory as it is now. Because the disk may be slow, it must
// be called outside of the loop. The loop then calls endSaving with its error.
func (g *giver) beginSaving(now time.Time) (save func() error) {
	g.edition++
	copied, edition, file := g.memory.clone(), g.edition, g.file
	g.unsaved, g.saving, g.saved = false, true, now
	return func() error { return file.save(copied, edition) }
}

func (g *giver) endSaving(err error) {
	g.saving = false
	if err == nil {
		g.problems.clear(problemMemory)
		return
	}
	g.unsaved = true
	g.problems.set(problemMemory, err.Error())
}

// finish saves the used part of the quota. It must be called last.
func (g *giver) finish() error {
	g.countUsed(time.Now())
	if !g.unsaved && !g.saving { // a save that is under way may have failed without a report
		return nil
	}
	return g.file.save(g.memory, g.edition+1)
}

// GivingStatus describes whether the waypoint is open now, and the used part of the quota, in bytes.
type GivingStatus struct {
	giving.Standing
	Used, Quota uint64    // in this month; Quota is 0 if there is none
	Renews      time.Time // when the quota begins anew
}

func (g *giver) status(now time.Time) GivingStatus {
	return GivingStatus{Standing: g.standing, Used: g.memory.Used.Used(), Quota: g.terms.Quota, Renews: giving.NextMonth(now)}
}

// SwitchOff closes the waypoint until a time; zero: until SwitchOn. Open connections continue. If it returns
// an error, the waypoint is closed, but the next agent may not know it.
func (w *Waypoint) SwitchOff(until time.Time) error {
	now := time.Now()
	// Use the wall clock, because the monotonic clock stands still while the host sleeps.
	return w.switchTo(&giving.Off{Since: now.Round(0), Until: until.Round(0)}, now)
}

// SwitchOn ends SwitchOff. If it returns an error, the waypoint is open, but the next agent may not know it.
func (w *Waypoint) SwitchOn() error { return w.switchTo(nil, time.Now()) }

func (w *Waypoint) switchTo(off *giving.Off, now time.Time) error {
	var save func() error
	asked := w.ask(func() {
		g := w.loop.giver
		g.switchTo(off)
		save = g.beginSaving(now)
		g.check(now)
	})
	if asked != nil {
		return fmt.Errorf("switch the waypoint: %w", asked)
	}
	if err := w.save(save); err != nil {
		return fmt.Errorf("the waypoint was switched, but a restart would undo it: %w", err)
	}
	return nil
}

// saveIfDue saves the memory if it is time to, in a goroutine of its own.
func (w *Waypoint) saveIfDue(now time.Time) {
	if g := w.loop.giver; g.saveDue(now) {
		save := g.beginSaving(now)
		w.running.Go(func() { _ = w.save(save) }) // the next check tries again
	}
}

// save writes the memory. The loop must not call it, because it waits for the loop.
func (w *Waypoint) save(save func() error) error {
	err := save()
	_ = w.ask(func() { w.loop.giver.endSaving(err) }) // an error means that the loop has stopped; then finish saves once more
	return err
}
