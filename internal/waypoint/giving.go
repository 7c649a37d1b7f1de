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

// What the operator gives, and when (package giving decides). While the waypoint is closed, requests
// are refused and the kernel resets new connections of every kind, by whatever mapping, admission or
// tunnel; what is under way goes on, and what it needs stays. When the quota is used up nothing goes
// on: the kernel answers what would go beyond it with resets, agent or no agent, and here every
// connection is ended, so that resets answer whatever comes of it.
//
// The kernel's table counts, for all kinds of detours, and so what is used outlives agents. The file
// (memory.go) is for when the table is gone: after a reboot, or when somebody flushed it.

// giver opens and closes the waypoint by the operator's terms, and counts what is used of the quota.
type giver struct {
	terms       giving.Terms
	table       *table
	connections *connections
	problems    problems
	tell        func(giving.Standing)
	log         *slog.Logger

	standing giving.Standing
	closed   bool // as the kernel's table has it
	ended    bool // connections are, as the quota is used up

	memory  memory
	file    *memoryFile
	edition uint64    // of the memory, counted when it is saved
	unsaved bool      // it is newer than what was saved last, or that failed
	saving  bool      // in a goroutine of its own
	saved   time.Time // when that was begun last
}

// saveEvery bounds how much of the counting a power cut can undo.
const saveEvery = 30 * time.Second

// remember reads what is remembered, before the table is looked at.
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

// adopt takes over what the table says and has counted.
func (g *giver) adopt(closed bool, used uint64, now time.Time) {
	g.closed = closed
	g.count(used)
	g.stand(now)
}

// count takes in what the kernel has counted.
func (g *giver) count(used uint64) {
	before := g.memory.Used.Used()
	g.memory.Used.Count(used)
	g.unsaved = g.unsaved || g.memory.Used.Used() > before
}

// noteIDs has members' ids saved if there are others than before.
func (g *giver) noteIDs(ids map[string]rules.MemberID) {
	if len(ids) > 0 && !maps.Equal(ids, g.memory.IDs) {
		g.memory.IDs, g.unsaved = ids, true
	}
}

// notePorts has the ports saved at which the converter takes connections for members, if they are others than before.
func (g *giver) notePorts(list []lease.Port) {
	if !lease.EqualPorts(list, g.memory.Incoming) {
		g.memory.Incoming, g.unsaved = list, true
	}
}

// stand works out the standing, and has the next table that is installed hold members to it.
func (g *giver) stand(now time.Time) {
	used := g.memory.Used.Used()
	g.standing = g.terms.Stand(now, g.memory.Off, used)
	g.table.rest.Closed, g.table.rest.Used = g.standing.Closed(), used
}

// check has the waypoint do what its terms come to now.
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

// countUsed asks the kernel what it has counted, and has it begin anew with the month.
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
	// Another month, or somebody has set the counter back.
	begin := ledger.Bytes[month]
	if min(begin, g.terms.Quota) != used || month != ledger.Counting {
		err = kernel.SetUsed(begin)
	}
	if err == nil && month != ledger.Counting {
		ledger.Turn(month)
		g.unsaved, g.saved = true, time.Time{} // the file must not say that it counts for the last one
	}
	return err
}

// writeClosed has the kernel open new connections, or not.
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

// endSpent ends all connections when the quota is used up. An end that sends something is answered with
// a reset, and MPTCP goes on elsewhere. One that only receives hears of it by its session (Tell).
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

// switchTo has nothing given until off is over; nil takes that back.
func (g *giver) switchTo(off *giving.Off) {
	g.memory.Off = off
	g.problems.clear(problemDamaged)
}

// saveDue reports whether the memory is to be saved.
func (g *giver) saveDue(now time.Time) bool {
	return g.unsaved && !g.saving && now.Sub(g.saved).Abs() >= saveEvery
}

// beginSaving returns what writes the memory as it is now. As the disk may be slow, that is not to be
// called where the state is owned; endSaving is, with its error.
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

// finish saves what was used, when nothing else runs any more.
func (g *giver) finish() error {
	g.countUsed(time.Now())
	if !g.unsaved && !g.saving { // what was being saved may have failed unheard
		return nil
	}
	return g.file.save(g.memory, g.edition+1)
}

// GivingStatus describes whether the waypoint is open now, and how much of the quota is used.
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
	// The wall clock counts: another one stands still while the host sleeps.
	return w.switchTo(&giving.Off{Since: now.Round(0), Until: until.Round(0)}, now)
}

// SwitchOn ends SwitchOff. An error means the same.
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

// saveIfDue saves what is to be remembered of giving, in a goroutine of its own.
func (w *Waypoint) saveIfDue(now time.Time) {
	if g := w.loop.giver; g.saveDue(now) {
		save := g.beginSaving(now)
		w.running.Go(func() { _ = w.save(save) }) // noted and tried again
	}
}

// save writes the memory. It is not called by the loop, which it asks.
func (w *Waypoint) save(save func() error) error {
	err := save()
	_ = w.ask(func() { w.loop.giver.endSaving(err) }) // else it has stopped, and is saved once more
	return err
}
