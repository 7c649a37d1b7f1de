package netstate

import (
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Routing rules of both families are found, and so are those of nftables.
func TestMarkUses(t *testing.T) {
	ns := netnstest.New(t)
	uses := func() (list []MarkUse) {
		ns.Must(t, func() (err error) {
			list, err = MarkUses(func(table string) bool { return strings.HasPrefix(table, "ours") })
			return err
		})
		return list
	}
	if got := uses(); len(got) > 0 {
		t.Errorf("of an empty host: %+v", got)
	}
	ns.Output(t, "ip", "rule", "add", "fwmark", "0x1234", "table", "100", "priority", "50")
	ns.Output(t, "ip", "rule", "add", "from", "10.0.0.0/8", "table", "101", "priority", "60")
	ns.Output(t, "ip", "-6", "rule", "add", "not", "fwmark", "0x100/0xff00", "table", "102", "priority", "70")
	ns.Output(t, "nft", "add table ip t; add chain ip t c { type filter hook prerouting priority 0; }; add rule ip t c meta mark set 1; add table ip ours2; add chain ip ours2 c; add rule ip ours2 c meta mark set 2")
	want := []MarkUse{
		{Rule: "ip rule 50 (fwmark 0x1234/0xffffffff)", Mask: 0xffffffff, Value: 0x1234},
		{Rule: "ip -6 rule 70 (fwmark 0x100/0xff00)", Mask: 0xff00, Value: 0x100},
		{Rule: "rule ip t c handle 2", Mask: 0xffffffff, Value: 1, Sets: true},
	}
	if got := uses(); !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
