package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

func (p *printer) waypoints(u *api.Using, isMember bool, now time.Time) {
	p.linef("")
	if len(u.Waypoints) == 0 {
		p.linef("%s", NoWaypoints(u, isMember))
		return
	}
	p.linef("Waypoints")
	var rows [][]string
	for _, w := range u.Waypoints {
		rtt, loss := "-", "-"
		if w.State == api.WaypointUp || w.State == api.WaypointClosed {
			rtt, loss = fmt.Sprintf("%.1f ms", w.RTT), SessionLoss(w)
		}
		mappings := ""
		if p.details {
			mappings = fmt.Sprint(w.Mappings)
		}
		rows = append(rows, []string{
			w.Name, w.Addr.String(), string(w.State) + " " + age(now, w.Since), rtt, loss, fmt.Sprint(w.Subflows), mappings, ready(w),
		})
	}
	p.table("NAME|ADDRESS|STATE|RTT|LOSS|SUBFLOWS|MAPPINGS|READY", rows)
	for _, w := range u.Waypoints {
		p.waypointReasons(waypointName(w, u.Waypoints), w)
	}
}

// NoWaypoints returns the text for a host that uses no waypoints, with what to do about it. isMember reports whether the host
// has joined a collective.
func NoWaypoints(u *api.Using, isMember bool) string {
	var avoided []string
	for _, w := range u.Steering.Avoid {
		if !w.Unknown {
			avoided = append(avoided, w.Name)
		}
	}
	if len(avoided) > 0 {
		return fmt.Sprintf("No waypoint is in use: connections have only their direct path. You avoid %s.", strings.Join(avoided, ", "))
	}
	const none = "No waypoints are known: connections have only their direct path. "
	if isMember {
		return none + "Each host that joins the collective later becomes one, except with `dcol join --client-only`."
	}
	return none + "This host has joined no collective: run `dcol join` with an invitation, or `dcol init`."
}

// waypointName names a waypoint, with its address if it has several.
func waypointName(w api.Waypoint, all []api.Waypoint) string {
	if slices.ContainsFunc(all, func(other api.Waypoint) bool { return other.Name == w.Name && other.Addr != w.Addr }) {
		return fmt.Sprintf("%s at %v", w.Name, w.Addr)
	}
	return w.Name
}

// waypointReasons writes why a waypoint, or a kind of detours through it, is not used. If another kind is ready at an
// address, it leaves out kinds that can never be used there, except in details.
func (p *printer) waypointReasons(name string, w api.Waypoint) {
	if w.Why != "" {
		p.linef("  %s: %s", name, w.Why)
	}
	for _, k := range w.Kinds {
		switch {
		case k.Why == "":
		case w.Why != "" && strings.HasSuffix(k.Why, w.Why) && !p.details: // written above
		case k.State == api.KindUnusable && ready(w) != "-" && !p.details:
		case k.State == api.KindReady:
			p.linef("  %s, %s: %s", name, k.Kind, k.Why)
		default:
			p.linef("  %s, %s is %s: %s", name, k.Kind, k.State, k.Why)
		}
	}
}

// leastLossPackets is the least number of a session's packets for which its loss is shown.
const leastLossPackets = 30

// SessionLoss returns the loss of a waypoint's session as text, or "-" if it was measured with too few packets.
func SessionLoss(w api.Waypoint) string {
	if w.LossPackets < leastLossPackets {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*w.Loss)
}
