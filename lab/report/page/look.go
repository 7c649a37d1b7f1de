package page

import (
	"slices"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/lab/chart"
)

// order lists the known procedures in the order of a reader's interest.
func order() []string {
	return []string{
		"mptcp-1", "dcol", "dcol-in-band", "dcol-openvpn", "dcol-wireguard",
		"tcp", "tcp-detour", "tcp-openvpn", "tcp-wireguard",
	}
}

// sortProcedures sorts procedures: known ones in the order of interest, those that differ from a known one only in the
// number of paths beside it, and the others last.
func sortProcedures(procedures []string) {
	rank := func(name string) int {
		if i := slices.Index(order(), kin(name)); i >= 0 {
			return i
		}
		return len(order())
	}
	slices.SortStableFunc(procedures, func(a, b string) int { return rank(a) - rank(b) })
}

// usesDetour reports whether the procedure has a detour beside the direct path, like dcol's procedures.
func usesDetour(procedure string) bool { return strings.HasPrefix(procedure, "dcol") }

// kin returns a procedure's name without the number of its paths: dcol for dcol-4.
func kin(procedure string) string {
	if slices.Contains(order(), procedure) {
		return procedure
	}
	at := strings.LastIndexByte(procedure, '-')
	if at < 0 {
		return procedure
	}
	if _, err := strconv.ParseUint(procedure[at+1:], 10, 8); err != nil {
		return procedure
	}
	return procedure[:at]
}

// lookOf returns a colour for each kind of detour, and hollow boxes for plain TCP. Procedures
// that differ only in the number of paths look the same. The colour of unknown procedures
// depends on their place in the list.
func lookOf(procedure string, place int) chart.Look {
	colours := map[string]int{
		"tcp": 0, "mptcp-1": 0, "dcol": 1, "tcp-detour": 1, "dcol-in-band": 2,
		"dcol-openvpn": 3, "tcp-openvpn": 3, "dcol-wireguard": 5, "tcp-wireguard": 5,
	}
	colour, known := colours[kin(procedure)]
	if !known {
		colour = place
	}
	return chart.Look{Colour: colour, Hollow: strings.HasPrefix(procedure, "tcp")}
}
