package latest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

func TestDecide(t *testing.T) {
	remote := netip.MustParseAddrPort("192.0.2.9:5000")
	at := func(i uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), i) }
	subflow := func(i uint16, end uint64, backup bool) mptcp.Subflow {
		return mptcp.Subflow{Local: at(i), Remote: remote, BackupLocal: backup, Metrics: mptcp.Metrics{DataEnd: end}}
	}
	for _, test := range []struct {
		name     string
		subflows []mptcp.Subflow
		want     []Change
	}{
		{"none", nil, nil},
		{"nothing has arrived", []mptcp.Subflow{subflow(1, 0, false), subflow(2, 0, false)}, nil},
		{"one has all", []mptcp.Subflow{subflow(1, 100, false)}, nil},
		{"the second has the newest", []mptcp.Subflow{subflow(1, 100, false), subflow(2, 200, false)}, []Change{{at(1), remote, true}}},
		{"it moves back, and never are all backups", []mptcp.Subflow{subflow(1, 300, true), subflow(2, 200, false)},
			[]Change{{at(1), remote, false}, {at(2), remote, true}}},
		{"the same data again is not original", []mptcp.Subflow{subflow(1, 300, true), subflow(2, 300, false)}, nil},
		{"it is so already", []mptcp.Subflow{subflow(1, 100, true), subflow(2, 200, false)}, nil},
	} {
		if got := Decide(test.subflows); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
