package netstate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Rules and routes are there once in both families, follow another mark, come back when others have removed them, and
// leave nothing behind.
func TestMarkedTables(t *testing.T) {
	for _, c := range []struct {
		name, rule, table, route string
		set                      func(mark, mask uint32) error
		remove                   func() error
	}{
		{"delivery", "199:", "3707764736", "local default", SetDelivery, RemoveDelivery},
		{"tunnels only", "201:", "3707764737", "unreachable default", SetTunnelsOnly, RemoveTunnelsOnly},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			all := func() (text string) {
				for _, family := range []string{"-4", "-6"} {
					text += ns.Output(t, "ip", family, "rule") + ns.Output(t, "ip", family, "route", "show", "table", "all", "proto", "220")
				}
				return text
			}
			before := all()
			set := func(mark uint32) {
				t.Helper()
				ns.Must(t, func() error { return c.set(mark, 3) })
				text := all()
				if n := strings.Count(text, c.rule); n != 2 {
					t.Errorf("%d rules, want one for each family:\n%s", n, text)
				}
				if n := strings.Count(text, c.route); n != 2 {
					t.Errorf("%d routes, want one for each family:\n%s", n, text)
				}
				if n := strings.Count(text, "fwmark 0x"+string(rune('0'+mark))+"/0x3"); n != 2 {
					t.Errorf("%d rules have the mark %d:\n%s", n, mark, text)
				}
			}
			set(1)
			set(1)
			set(2)
			ns.Output(t, "ip", "-4", "rule", "del", "priority", strings.TrimSuffix(c.rule, ":"))
			ns.Output(t, "ip", "-6", "route", "flush", "table", c.table)
			set(2)
			ns.Must(t, func() error {
				uses, err := routingMarks()
				if len(uses) > 0 {
					t.Errorf("others use marks: %+v", uses)
				}
				return err
			})
			ns.Must(t, func() error {
				a, err := OpenAddresses()
				if err != nil {
					return err
				}
				defer a.Close()
				list, err := a.OnLink()
				if slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
					t.Errorf("the Internet counts as this host's: %v", list)
				}
				return err
			})
			for range 2 {
				ns.Must(t, c.remove)
				if after := all(); after != before {
					t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
				}
			}
		})
	}
}
