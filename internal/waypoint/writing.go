package waypoint

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// commit changes the kernel's table as the index has been changed already.
func (w *Waypoint) commit(change rules.Change) error {
	return w.write(func() error { return w.kernel.rules.Commit(change) })
}

// write does a transaction whose outcome the index has already. If it fails, table and index are
// brought together and it is tried again; if that does not help, the table is written anew.
func (w *Waypoint) write(transaction func() error) error {
	err := transaction()
	if err == nil {
		return nil
	}
	if err = w.reconcile(err); err == nil {
		err = transaction()
	}
	if err == nil {
		return nil
	}
	w.log.Warn("cannot change the table; writing it anew", "err", err)
	return w.install()
}

// install puts a table as the index has it in place of what is there.
func (w *Waypoint) install() error {
	if err := w.kernel.rules.Install(w.state()); err != nil {
		w.outOfStep = true
		w.problems.set(problemTable, err.Error())
		return err
	}
	for _, m := range w.members.all() {
		m.saved = true
	}
	w.outOfStep = false
	w.problems.clear(problemTable)
	return nil
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

// checkTable writes the table again if somebody removed it, or if it could not be written before.
func (w *Waypoint) checkTable() {
	if w.outOfStep {
		_ = w.install() // which notes the problem
		return
	}
	if _, err := w.restoreTable(); err != nil {
		w.problems.set(problemTable, err.Error())
	}
}

func (w *Waypoint) restoreTable() (restored bool, err error) {
	present, err := w.kernel.rules.Present()
	if err != nil || present {
		return false, err
	}
	if err := w.install(); err != nil {
		return false, fmt.Errorf("write the table again that somebody removed: %w", err)
	}
	w.log.Warn("somebody removed the nftables table; it is written again", "mappings", w.index.len())
	return true, nil
}
