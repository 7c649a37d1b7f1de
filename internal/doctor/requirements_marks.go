package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"strings"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

const (
	wholeMark = ^uint32(0)
	// goodMarks is enough bits for 4095 members. leastMarks is the fewest bits that the waypoint accepts.
	goodMarks  = 16
	leastMarks = 8
	// namedRules bounds the rules that a finding lists.
	namedRules = 4
)

// checkMarks checks the marks of this host's roles.
func checkMarks(ctx context.Context, e *Env) Result {
	if !e.Config.Client || e.Config.TunnelMark == 0 {
		return waypointOnly(checkWaypointMarks)(ctx, e)
	}
	uses, err := e.System.MarkUses()
	if err != nil {
		return skipped("cannot list the rules about marks: %v", err)
	}
	var same []string
	for _, u := range uses {
		if u.Value&e.Config.Marks == e.Config.TunnelMark {
			same = append(same, u.Rule)
		}
	}
	switch {
	case len(same) > 0:
		return warning(fixMarks(uses), "%s uses the mark %#x of connections to converters (client.converter.tunnel): packets of this host with that mark are dropped outside of tunnels",
			list(same), e.Config.TunnelMark)
	case e.Config.Waypoint:
		return checkWaypointMarks(ctx, e)
	}
	return ok("no other program's rule uses the mark %#x of connections to converters", e.Config.TunnelMark)
}

// checkWaypointMarks checks that no other program uses the waypoint's bits in the marks of packets and connections. A
// rule that sets these bits would break members' connections, or make others' connections count as members'. A rule
// that compares a whole mark is only a hint that another rule sets it.
func checkWaypointMarks(_ context.Context, e *Env) Result {
	if e.Config.Err != nil {
		return skipped("no usable configuration names them")
	}
	uses, err := e.System.MarkUses()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return skipped("needs root to list the rules about marks")
	case err != nil:
		return skipped("cannot list the rules about marks: %v", err)
	}
	ours := e.Config.Marks
	highest := uint32(1) << (bits.Len32(ours|1) - 1)
	var overwrite, shared, hints []string
	for _, u := range uses {
		switch {
		case u.Sets && u.Mask == wholeMark:
			overwrite = append(overwrite, u.Rule)
		case u.Mask == wholeMark && u.Value&highest != 0, u.Mask != wholeMark && u.Mask&ours != 0:
			shared = append(shared, u.Rule)
		case u.Mask == wholeMark && u.Value&ours != 0:
			hints = append(hints, u.Rule)
		}
	}
	fix := fixMarks(uses)
	switch {
	case len(overwrite) > 0:
		return warning("make each rule change only its own bits, as with nft `ct mark set ct mark & 0xffff00ff | 0x100` and iptables --set-xmark 0x100/0xff00, also when it saves or restores marks",
			"%s overwrites whole marks, including the bits that identify members' connections (waypoint.marks = %#x), unless it never sees these connections", list(overwrite), ours)
	case len(shared) > 0:
		return warning(fix, "%s uses bits of waypoint.marks = %#x: other connections may be mistaken for members'", list(shared), ours)
	case len(hints) > 0:
		return optional(fix, "%s uses a mark that has bits of waypoint.marks = %#x: members' connections cannot carry this mark", list(hints), ours)
	}
	if tables, err := e.read("proc/net/ip_tables_names"); err == nil && strings.Contains(tables, "mangle") {
		return info("the old iptables may set marks in its table mangle, which cannot be read here: bits of waypoint.marks = %#x must not be among them (iptables-legacy -t mangle -S)", ours)
	}
	return ok("no other program's rule uses the bits %#x", ours)
}

func list(rules []string) string {
	if more := len(rules) - namedRules; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(rules[:namedRules], ", "), more)
	}
	return strings.Join(rules, ", ")
}

// fixMarks proposes bits that no rule uses, the highest ones.
func fixMarks(uses []netstate.MarkUse) string {
	const other = "make that program use other bits"
	free := wholeMark
	for _, u := range uses {
		if u.Mask == wholeMark {
			free &^= u.Value
		} else {
			free &^= u.Mask
		}
	}
	if bits.OnesCount32(free) < leastMarks {
		return other + "; there are not enough free ones for waypoint.marks"
	}
	for bits.OnesCount32(free) > goodMarks {
		free &= free - 1
	}
	return fmt.Sprintf("run `dcol down`, set waypoint.marks = %#x and start the agent, or %s", free, other)
}
