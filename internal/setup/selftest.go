package setup

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Finding is the result of one check.
type Finding struct {
	State State
	Text  string
	more  bool  // further findings may follow soon
	final bool  // the result will not change
	late  State // the state to use instead of soon when the time is over; Later if empty
}

// State is the state of a Finding.
type State string

// The states, as displayed.
const (
	Works State = "ok"
	Later State = "later" // depends on others first
	Lacks State = "no"    // not available, but the host is a member without it
	Warns State = "warn"  // should be available but cannot be on this host; the rest works
	Fails State = "FAIL"
	soon  State = "soon" // may be known in a moment; displayed as Later
)

// Failed reports whether something does not work.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.State == Fails })
}

// Test queries the agent until everything is known or the time is over, and returns the findings.
// Meanwhile it calls waiting with the finding it waits for.
func Test(ctx context.Context, socket string, within time.Duration, waiting func(Finding)) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	agent := api.Dial(socket)
	var last []Finding
	for {
		status, err := agent.Status(ctx)
		var members api.Members
		if err == nil {
			members, err = agent.Members(ctx)
		}
		if err == nil {
			last = findings(status, members)
			first := slices.IndexFunc(last, Finding.unsettled)
			if first < 0 {
				return last, nil
			}
			waiting(last[first])
		}
		select {
		case <-ctx.Done():
			if last == nil {
				return nil, fmt.Errorf("ask the agent what works: %w", err)
			}
			return timeIsOver(last), nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// timeIsOver replaces the state of findings that did not become known in time.
func timeIsOver(all []Finding) []Finding {
	for i := range all {
		if all[i].State == soon {
			all[i].State = cmp.Or(all[i].late, Later)
		}
	}
	return all
}

// unsettled reports whether the finding may change in a moment, because failed connections to
// waypoints are retried.
func (f Finding) unsettled() bool {
	return !f.final && (f.more || f.State == soon || f.State == Lacks || f.State == Fails)
}

// findings derives findings from the agent's answers.
func findings(s api.Status, members api.Members) (all []Finding) {
	add := func(state State, format string, args ...any) {
		all = append(all, Finding{State: state, Text: fmt.Sprintf(format, args...)})
	}
	if c := s.Collective; c != nil {
		if c.Certificate.Expelled != "" { // nothing else matters then
			return []Finding{{State: Fails, final: true, Text: "member: " + c.Certificate.Expelled +
				". Connections use the direct path only. Ask the collective's operator. To leave the collective, run `dcol leave`"}}
		}
		describeLink(s, add)
		all[len(all)-1].late = Fails
	}
	if s.Coordinator != nil {
		if s.Coordinator.Listen == "" {
			add(soon, "coordinator: hosts cannot join yet")
			all[len(all)-1].late = Fails
		} else {
			add(Works, "coordinator: hosts join and renew at TCP port %s, and exchange messages at TCP port %s", portOf(s.Coordinator.Listen), portOf(s.Coordinator.Bus))
		}
	}
	if s.Client != nil {
		more := describeClient(s, members, add)
		all[len(all)-1].more = more
	}
	if s.Serving != nil && s.Collective != nil {
		describeWaypoint(s, add)
	}
	for _, p := range s.Problems {
		describeProblem(s, p, add)
	}
	return all
}

// describeProblem adds a finding for a problem that the agent reports. If this host lacks what a
// kind of detours needs, the finding names the kinds that work instead.
func describeProblem(s api.Status, p string, add adder) {
	what, _, _ := strings.Cut(p, ": ")
	switch {
	case strings.HasPrefix(p, api.Unreached): // reported already, with the fix
	case strings.HasSuffix(what, api.NotUsed):
		add(Warns, "client: %s. Other kinds of detours do not need this", p)
	case strings.HasSuffix(what, api.NotOffered) && s.Serving != nil && len(s.Serving.Offers) > 0:
		add(Warns, "waypoint: %s. It offers %s", p, strings.Join(s.Serving.Offers, " and "))
	default:
		add(Fails, "%s", p)
	}
}

type adder = func(state State, format string, args ...any)

func describeLink(s api.Status, add adder) {
	c, link := s.Collective, s.Collective.Coordinator
	switch {
	case !link.Connected && link.Why != "" && s.Coordinator == nil:
		add(soon, "member: not connected to a coordinator: %s. Allow TCP ports 45672 and 45673: incoming at the coordinator, outgoing here. "+
			"The agent keeps trying", link.Why)
	case !link.Connected && link.Why != "":
		add(soon, "member: not connected to this coordinator's own bus: %s. The agent keeps trying; see its log", link.Why)
	case !link.Connected || !complete(s):
		add(soon, "member: connecting to the coordinator")
	default:
		add(Works, "member: connected to the coordinator %s, %s known", link.Server, several(c.Members, "member"))
	}
}

// describeClient adds findings about the waypoints in use, and reports whether more kinds may be
// ready in a moment.
func describeClient(s api.Status, members api.Members, add adder) (more bool) {
	var through, kinds, why []string
	for _, w := range s.Client.Waypoints {
		ready := false
		for _, k := range w.Kinds {
			switch k.State {
			case api.KindDown: // a tunnel leads to one of a waypoint's addresses only
				more = more || w.State == api.WaypointUp && !readyAt(s.Client.Waypoints, w.Name, k.Kind)
			case api.KindReady:
				ready = true
				if !slices.Contains(kinds, k.Kind) {
					kinds = append(kinds, k.Kind)
				}
			}
		}
		switch {
		case ready && !slices.Contains(through, w.Name):
			through = append(through, w.Name)
		case !ready && w.Why != "":
			why = append(why, fmt.Sprintf("%s at %v: %s", w.Name, w.Addr.Addr(), w.Why))
		}
	}
	switch {
	case len(through) > 0:
		add(Works, "client: %s detours through %s are ready", strings.Join(kinds, " and "), strings.Join(through, ", "))
	case len(s.Client.Waypoints) == 0 && s.Collective != nil && !s.Collective.Coordinator.Connected:
		add(soon, "client: no waypoint is known, because no coordinator is connected")
	case len(s.Client.Waypoints) == 0:
		add(soonIf(!complete(s) || otherWaypoint(members)), "client: no other waypoint has joined yet; detours begin with the first")
	case len(why) > 0:
		add(soon, "client: no detour is ready yet: %s", strings.Join(why, "; "))
	default:
		add(soon, "client: no detour is ready yet")
	}
	return more
}

// readyAt reports whether a kind of detours through a waypoint is ready at any of its addresses.
func readyAt(waypoints []api.Waypoint, name, kind string) bool {
	return slices.ContainsFunc(waypoints, func(w api.Waypoint) bool {
		return w.Name == name && slices.ContainsFunc(w.Kinds, func(k api.WaypointKind) bool { return k.Kind == kind && k.State == api.KindReady })
	})
}

// describeWaypoint adds a finding whether others reach this host.
func describeWaypoint(s api.Status, add adder) {
	r := s.Collective.Record
	if len(r.Addresses) == 0 {
		add(soon, "waypoint: other members do not know of this one yet%s", because(r.Why))
		return
	}
	at := fmt.Sprintf("UDP port %d of %s", r.Port, addresses(r.Addresses))
	switch {
	case r.Checked == nil:
		add(soonIf(!alone(s)), "waypoint: nobody has tested yet whether others can reach %s", at)
	case r.Checked.Yes > 0 && r.Punch:
		add(Works, "waypoint: others reach %s by hole punching, because this host is behind a NAT (checked by %s)", at, strings.Join(r.Checked.By, ", "))
	case r.Checked.Yes > 0:
		add(Works, "waypoint: others reach %s (checked by %s)", at, strings.Join(r.Checked.By, ", "))
	case r.Punch:
		add(Lacks, "waypoint: %s cannot reach %s by hole punching (%s). %s", strings.Join(r.Checked.By, ", "), at, r.Checked.Why, fixOf(s.Serving.Outside))
	case s.Serving.Outside != nil && s.Serving.Outside.Leaves == api.Punchable: // which the record does not say yet
		add(soon, "waypoint: %s cannot reach %s, because this host is behind a NAT; others will try hole punching", strings.Join(r.Checked.By, ", "), at)
	default:
		add(Lacks, "waypoint: %s cannot reach %s (%s). %s", strings.Join(r.Checked.By, ", "), at, r.Checked.Why, fixOf(s.Serving.Outside))
	}
}

// fixOf returns advice for a waypoint that others cannot reach.
func fixOf(o *api.Outside) string {
	if o != nil && o.Fix != "" {
		return o.Problem + ": " + o.Fix
	}
	return "Allow that port, in the router too if there is one, or set this host's public address ([collective] addresses). The client role works without that"
}

// complete reports whether the directory has arrived. It contains at least this host and the
// coordinator.
func complete(s api.Status) bool {
	return !s.Collective.Behind && s.Collective.Members > 0 && (s.Coordinator != nil || s.Collective.Members > 1)
}

func otherWaypoint(members api.Members) bool {
	return slices.ContainsFunc(members.Members, func(m api.Member) bool {
		return m.Name != members.Self && m.Expelled.IsZero() && slices.Contains(m.Roles, "waypoint")
	})
}

// alone reports whether nobody else has joined yet. Only a coordinator can tell.
func alone(s api.Status) bool { return s.Coordinator != nil && s.Coordinator.Members == 1 }

func soonIf(yes bool) State {
	if yes {
		return soon
	}
	return Later
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func portOf(listen string) string { return listen[strings.LastIndexByte(listen, ':')+1:] }

func addresses(list []netip.Addr) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}

func several(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
