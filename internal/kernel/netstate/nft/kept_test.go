package nft

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A table is there as it is to be at the time, whoever removes it, until it is closed.
func TestKept(t *testing.T) {
	ns := netnstest.New(t)
	elements := []Element{element(1, 1)}
	keep := func() (k *Kept) {
		ns.Must(t, func() (err error) {
			k, err = Keep(testTable, func(tx *Tx) {
				tx.AddSet(testTable, testSet)
				tx.AddElements(testTable, testSet, elements)
			})
			return err
		})
		return k
	}
	c := open(t, ns)
	has := func(when string, want int) {
		t.Helper()
		if list, err := c.Elements(testTable, testSet); err != nil || len(list) != want {
			t.Errorf("%s: %d elements, want %d (%v)", when, len(list), want, err)
		}
	}
	left := keep() // by a process that was killed
	defer left.conn.Close()
	elements = append(elements, element(2, 2))
	k := keep()
	has("in place of what was left", 2)
	if restored, err := k.Check(); restored || err != nil {
		t.Errorf("nothing was amiss: %v, %v", restored, err)
	}
	more := []Element{element(3, 3)}
	change := func(tx *Tx) { tx.AddElements(testTable, testSet, more) }
	if err := k.Commit("add one", change); err != nil {
		t.Error(err)
	}
	has("changed", 3)
	ns.Output(t, "nft", "flush", "ruleset")
	if err := k.Commit("add one", change); err == nil || !strings.HasPrefix(err.Error(), "add one: ") {
		t.Errorf("a table that is not there was changed: %v", err)
	}
	if restored, err := k.Check(); !restored || err != nil {
		t.Errorf("flushed: %v, %v", restored, err)
	}
	has("after a flush", 2)
	elements = elements[:1]
	if err := k.Install(); err != nil {
		t.Error(err)
	}
	has("installed anew", 1)
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	keep().conn.Close() // this one is killed too
	for range 2 {
		ns.Must(t, func() error { return RemoveTable(testTable) })
	}
	if tables := ns.Output(t, "nft", "list", "tables"); tables != "" {
		t.Errorf("left behind: %s", tables)
	}
}
