package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// A raised number of subflows applies to existing connections. Newly excluded destinations get no detours from then
// on.
func TestReconfigured(t *testing.T) {
	even := &pathWorth{trip: 20 * time.Millisecond, rate: 100}
	s := newSelection(t, map[string]*pathWorth{"": even, "bob": even, "carol": even})
	s.offer("bob", "carol")
	s.connect()
	s.bulk(10 * time.Second)
	if n := len(s.subflows); n != 2 {
		t.Fatalf("%d subflows before, want 2", n)
	}
	s.tell(path.Reconfigured{Policy: policy.Detours{Subflows: 3}})
	s.bulk(3 * time.Second)
	if n := len(s.subflows); n != 3 {
		t.Errorf("%d subflows, want 3", n)
	}
	s.tell(path.Reconfigured{Policy: policy.Detours{Subflows: 3}, Exclude: []netip.Prefix{netip.PrefixFrom(ip("web"), ip("web").BitLen())}})
	s.connect()
	s.bulk(3 * time.Second)
	if n := len(s.subflows); n != 1 {
		t.Errorf("%d subflows to an excluded server", n)
	}
	notes := func() (connection, next string) {
		x := s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now)
		return x.Conns[len(x.Conns)-1].Note.Text, x.Note.Text
	}
	if connection, next := notes(); connection != "203.0.113.80 is in client.exclude (203.0.113.80/32)" || next != connection {
		t.Errorf("excluded: %q, and a new one %q", connection, next)
	}
	s.tell(path.Reconfigured{Policy: policy.Detours{Subflows: 3}})
	if connection, next := notes(); connection != "203.0.113.80 was in client.exclude when the connection began" || next != "" {
		t.Errorf("no longer excluded: %q, and a new one %q", connection, next)
	}
}

func (s *selection) lower(subflows int) {
	s.tell(path.Reconfigured{Policy: policy.Detours{Subflows: subflows}})
}

// A lowered number of subflows ends the surplus detours of existing connections, the least useful first, one at a time.
// Each is a backup before, so that its queue drains.
func TestLoweredNumberEndsSurplusDetours(t *testing.T) {
	worth := func() map[string]*pathWorth {
		return map[string]*pathWorth{"": good(), "bob": good(), "carol": {trip: 60 * time.Millisecond, rate: 300}}
	}
	start := func(t *testing.T, paths map[string]*pathWorth) *selection {
		s := newSelectionWith(t, paths, func(c *path.Config) { c.Policy = policy.Detours{Subflows: 3} })
		s.offer("bob", "carol")
		s.connect()
		s.log = nil
		return s
	}
	t.Run("bulk", func(t *testing.T) {
		s := start(t, worth())
		s.bulk(5 * time.Second)
		s.lower(2)
		s.bulk(3 * time.Second)
		s.want("lowered to 2", "demote carol", "end carol")
		s.lower(1)
		s.bulk(500 * time.Millisecond)
		s.want("lowered to 1", "demote bob") // its queue has not drained
		s.bulk(3 * time.Second)
		s.want("a moment later", "end bob")
		s.bulk(10 * time.Second)
		s.want("afterwards")
	})
	t.Run("both at once", func(t *testing.T) {
		s := start(t, worth())
		s.bulk(5 * time.Second)
		s.lower(1)
		s.bulk(5 * time.Second)
		s.want("lowered to 1", "demote carol", "end carol", "demote bob", "end bob")
	})
	t.Run("raised again", func(t *testing.T) {
		s := start(t, worth())
		s.bulk(5 * time.Second)
		s.lower(2)
		s.bulk(500 * time.Millisecond)
		s.lower(3)
		s.bulk(5 * time.Second)
		s.want("lowered for a moment", "demote carol", "promote carol")
	})
	t.Run("messages", func(t *testing.T) {
		paths := worth()
		paths[""].trip = 150 * time.Millisecond
		s := start(t, paths)
		s.messages(20*time.Second, 2*dt)
		if s.over("bob").backup || !s.over("").backup || !s.over("carol").backup {
			t.Fatalf("not bob carries: %v", s.log)
		}
		s.log = nil
		s.lower(2)
		s.messages(3*time.Second, 2*dt)
		s.want("lowered to 2", "end carol")
		s.lower(1)
		s.messages(5*time.Second, 2*dt)
		s.want("lowered to 1", "promote direct", "demote bob", "end bob")
	})
	t.Run("idle", func(t *testing.T) {
		s := start(t, worth())
		s.pause(20 * time.Second)
		s.lower(1)
		s.pause(10 * time.Second)
		if len(s.subflows) != 1 {
			t.Errorf("%d subflows: %v", len(s.subflows), s.log)
		}
	})
	// The detour carries data alone, so it stays until the direct path works.
	t.Run("direct path is dead", func(t *testing.T) {
		paths := worth()
		s := start(t, paths)
		s.bulk(5 * time.Second)
		paths[""].dead = true
		s.bulk(5 * time.Second)
		s.lower(1)
		s.bulk(30 * time.Second)
		if bob := s.over("bob"); bob == nil || bob.backup {
			t.Fatalf("only the dead path carries: %v", s.log)
		}
		paths[""].dead = false
		s.bulk(30 * time.Second)
		if len(s.subflows) != 1 {
			t.Errorf("%d subflows after it is back: %v", len(s.subflows), s.log)
		}
	})
}
