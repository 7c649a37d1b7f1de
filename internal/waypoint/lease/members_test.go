package lease

import (
	"fmt"
	"testing"
)

// A member gets the id that it had before, though others ask first now, and nobody else does while there are others.
func TestIDsReturn(t *testing.T) {
	const most = 15
	before := newMembers(most)
	for i := range 10 {
		before.get(fmt.Sprintf("other %d", i), "5e")
	}
	id := before.get("alice", "5e").ID
	after := newMembers(most)
	after.remember(before.ids())
	for i := range most - len(before.ids()) {
		if got := after.get(fmt.Sprintf("new %d", i), "5e").ID; got <= id {
			t.Errorf("a new member gets the id %d of another", got)
		}
	}
	if got := after.get("alice", "5e").ID; got != id {
		t.Errorf("the id was %d and is %d", id, got)
	}
	for i := len(after.byID); i < most; i++ { // who takes what was kept for others
		after.get(fmt.Sprintf("late %d", i), "5e")
	}
	if len(after.byID) != most || after.byID[0] != nil || after.get("too many", "5e") != nil {
		t.Errorf("%d of %d ids are given", len(after.byID), most)
	}
}
