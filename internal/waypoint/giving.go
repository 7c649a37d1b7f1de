package waypoint

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
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

// given is the state of all that.
type given struct {
	terms    giving.Terms
	memory   memory
	file     *memoryFile
	edition  uint64    // of the memory, counted when it is saved
	unsaved  bool      // it is newer than what was saved last, or that failed
	saving   bool      // in a goroutine of its own
	saved    time.Time // when that was begun last
	standing giving.Standing
	closed   bool // as the kernel's table has it
	ended    bool // connections are, as the quota is used up
}

// saveEvery is how much of the counting a power cut can undo, at most.
const saveEvery = 30 * time.Second

// rememberGiven reads what is remembered, before the table is looked at.
func (w *Waypoint) rememberGiven() error {
	m, damage, err := readMemory(w.config.Memory)
	if err != nil {
		return err
	}
	g := &w.given
	g.file = &memoryFile{path: w.config.Memory}
	g.memory, g.terms = m, giving.Terms{Hours: w.config.Hours, Quota: w.config.Quota}
	if damage != "" {
		w.log.Error("the waypoint is closed", "err", damage)
		w.problems.set(problemDamaged, damage)
		g.unsaved = true
	}
	return nil
}

// adoptGiven takes over what the table says and has counted.
func (w *Waypoint) adoptGiven(state rules.State) {
	g := &w.given
	g.closed = state.Closed
	g.count(state.Used)
	g.standing = g.stand(time.Now())
}

// count takes in what the kernel has counted.
func (g *given) count(used uint64) {
	before := g.memory.Used.Used()
	g.memory.Used.Count(used)
	g.unsaved = g.unsaved || g.memory.Used.Used() > before
}

func (g *given) stand(now time.Time) giving.Standing {
	return g.terms.Stand(now, g.memory.Off, g.memory.Used.Used())
}

// checkGiven has the waypoint do what its terms come to now.
func (w *Waypoint) checkGiven(now time.Time) {
	g := &w.given
	w.countUsed(now)
	if off := g.memory.Off; off != nil && off.Over(now) {
		g.memory.Off, g.unsaved = nil, true
	}
	before := g.standing
	g.standing = g.stand(now)
	w.writeClosed()
	w.endSpent()
	if !g.standing.Equal(before) {
		w.log.Info("what the waypoint gives has changed", "gives", !g.standing.Closed(), "why", g.standing.Cause, "until", g.standing.Until)
		w.tellGiven()
	}
	if g.unsaved && !g.saving && now.Sub(g.saved).Abs() >= saveEvery {
		save := w.beginSaving(now)
		w.running.Go(func() { _ = save() }) // noted and tried again
	}
}

func (w *Waypoint) tellGiven() {
	if w.config.Tell != nil {
		w.config.Tell(w.given.standing)
	}
}

// countUsed asks the kernel what it has counted, and has it begin anew with the month.
func (w *Waypoint) countUsed(now time.Time) {
	g := &w.given
	if g.terms.Quota == 0 {
		return
	}
	err := func() error {
		used, err := w.kernel.rules.Used()
		if errors.Is(err, unix.ENOENT) {
			w.log.Warn("somebody removed the rule that counts for the quota; it is written again", "err", err)
			return w.kernel.rules.SetUsed(g.memory.Used.Used())
		}
		if err != nil {
			return err
		}
		g.count(used)
		month := giving.MonthOf(now)
		// Another month, or somebody has set the counter back.
		begin := g.memory.Used.Bytes[month]
		if min(begin, g.terms.Quota) != used || month != g.memory.Used.Counting {
			err = w.kernel.rules.SetUsed(begin)
		}
		if err == nil && month != g.memory.Used.Counting {
			g.memory.Used.Turn(month)
			g.unsaved, g.saved = true, time.Time{} // the file must not say that it counts for the last one
		}
		return err
	}()
	switch _, known := w.problems[problemQuota]; {
	case err == nil:
		w.problems.clear(problemQuota)
	case !known:
		w.log.Error("the quota is not counted", "err", err)
		fallthrough
	default:
		w.problems.set(problemQuota, err.Error())
	}
}

// writeClosed has the kernel open new connections, or not.
func (w *Waypoint) writeClosed() {
	g := &w.given
	closed := g.standing.Closed()
	if closed == g.closed {
		return
	}
	if err := w.write(func() error { return w.kernel.rules.SetClosed(closed) }); err != nil {
		w.log.Error("new connections are not refused or let in as they should be", "closed", closed, "err", err)
		return // tried again
	}
	g.closed = closed
}

// endSpent ends all connections when the quota is used up. An end that sends something is answered with
// a reset, and MPTCP goes on elsewhere. One that only receives hears of it by its session (Tell).
func (w *Waypoint) endSpent() {
	g := &w.given
	if !g.terms.Spent(g.memory.Used.Used()) {
		g.ended = false
		return
	}
	if g.ended {
		return
	}
	w.flowsMu.Lock()
	defer w.flowsMu.Unlock()
	if err := w.kernel.flows.Delete(w.config.marks().Ours()); err != nil {
		w.log.Error("the quota is used up, and connections do not end", "err", err)
		return // tried again
	}
	g.ended = true
}

// beginSaving returns what writes the memory as it is now. As the disk may be slow, that is not to be
// called where the state is owned.
func (w *Waypoint) beginSaving(now time.Time) (save func() error) {
	g := &w.given
	g.edition++
	copied, edition := g.memory.clone(), g.edition
	g.unsaved, g.saving, g.saved = false, true, now
	return func() error {
		err := g.file.save(copied, edition)
		_ = w.ask(func() { // else it has stopped, and is saved once more
			g.saving = false
			if err == nil {
				w.problems.clear(problemMemory)
				return
			}
			g.unsaved = true
			w.problems.set(problemMemory, err.Error())
		})
		return err
	}
}

// ClosedCode is the refusal that goes with a cause; 0 if the waypoint gives.
func ClosedCode(c giving.Cause) wire.Code {
	switch c {
	case giving.SwitchedOff:
		return wire.SwitchedOff
	case giving.OutsideHours:
		return wire.OutsideHours
	case giving.QuotaUsed:
		return wire.QuotaTraffic
	case giving.Gives:
	}
	return 0
}

// whileClosed refuses a request while nothing is given.
func (w *Waypoint) whileClosed(id uint64, now time.Time) *wire.Refusal {
	s := w.given.standing
	if !s.Closed() {
		return nil
	}
	refusal := refuse(id, ClosedCode(s.Cause), "")
	if !s.Until.IsZero() {
		refusal.RetryAfter = wire.Span(s.Until.Sub(now))
	}
	return refusal
}

// SwitchOff has nothing given until a time; zero: until SwitchOn. Connections that are open go on. An
// error says that it is off, but that an agent after this one may not know.
func (w *Waypoint) SwitchOff(until time.Time) error {
	now := time.Now()
	// The wall clock counts: another one stands still while the host sleeps.
	return w.switchTo(&giving.Off{Since: now.Round(0), Until: until.Round(0)}, now)
}

// SwitchOn takes SwitchOff back, under the same terms.
func (w *Waypoint) SwitchOn() error { return w.switchTo(nil, time.Now()) }

func (w *Waypoint) switchTo(off *giving.Off, now time.Time) error {
	var save func() error
	asked := w.ask(func() {
		w.given.memory.Off = off
		w.problems.clear(problemDamaged)
		save = w.beginSaving(now)
		w.checkGiven(now)
	})
	if asked != nil {
		return fmt.Errorf("switch the waypoint: %w", asked)
	}
	if err := save(); err != nil {
		return fmt.Errorf("the waypoint does as it was told, but a restart would make it forget: %w", err)
	}
	return nil
}

// closeGiven saves what was used, when nothing else runs any more.
func (w *Waypoint) closeGiven() error {
	g := &w.given
	w.countUsed(time.Now())
	if !g.unsaved && !g.saving { // what was being saved may have failed unheard
		return nil
	}
	return g.file.save(g.memory, g.edition+1)
}

// GivenSnapshot is what the operator gives now.
type GivenSnapshot struct {
	giving.Standing
	Used, Quota uint64    // in this month; Quota is 0 if there is none
	Renews      time.Time // when the quota begins anew
}

func (w *Waypoint) givenSnapshot(now time.Time) GivenSnapshot {
	g := &w.given
	return GivenSnapshot{Standing: g.standing, Used: g.memory.Used.Used(), Quota: g.terms.Quota, Renews: giving.NextMonth(now)}
}
