package tunnel

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// The table says what its comment does, comes back when a firewall is reloaded, and
// goes without a trace.
func TestGuard(t *testing.T) {
	ns := netnstest.New(t)
	var g *nft.Kept
	ns.Must(t, func() (err error) {
		g, err = OpenGuard([]string{"dcolwg0", "dcolov0"})
		return err
	})
	check := func(when string) {
		t.Helper()
		list := ns.Output(t, "nft", "list", "ruleset")
		const rule = "iifname @interfaces ct state ! established,related counter packets 0 bytes 0 drop"
		if strings.Count(list, rule) != 2 || !strings.Contains(list, `"dcolov0"`) || !strings.Contains(list, `"dcolwg0"`) {
			t.Errorf("%s:\n%s", when, list)
		}
	}
	check("at first")
	if restored, err := g.Check(); restored || err != nil {
		t.Errorf("nothing was amiss: %v, %v", restored, err)
	}
	ns.Output(t, "nft", "flush", "ruleset")
	if restored, err := g.Check(); !restored || err != nil {
		t.Errorf("flushed: %v, %v", restored, err)
	}
	check("after a flush")
	ns.Must(t, func() error { _, err := OpenGuard([]string{"dcolwg0", "dcolov0"}); return err })
	check("in place of one that was left")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		ns.Must(t, func() error { return nft.RemoveTable(guardTable) })
	}
	if left := ns.Output(t, "nft", "list", "ruleset"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
