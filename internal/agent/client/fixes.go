package client

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// fixes maps codes of reasons to what a user can do about them.
var fixes = map[string]string{
	"server-limit":  "on a server of your own: ip mptcp limits set subflows 8; by default, Linux accepts two besides the first; this host notices the change within an hour, or after a restart of the agent",
	"server-denies": "on a server of your own: sysctl -w net.mptcp.allow_join_initial_addr_port=1, if no load balancer distributes its connections",
	"quota":         fixQuota,
	"rests-quota":   fixQuota,
	"was-excluded":  "open a new connection: client.exclude decides when a connection begins",
	"budget-low":    fixOfBudget("waypoint"),
}

const (
	fixQuota   = "raise quota in the [[policy]] of these connections, or wait until quota_every has passed"
	fixBlocked = "a tunnel hides TCP options from middleboxes: use a waypoint that offers wireguard, and have wireguard in client.kinds; dcol trace finds where the option is removed, and dcol map SERVER:PORT --via WAYPOINT shows whether the waypoint forwards to the port"
)

func fixOfBudget(key string) string {
	return "dcol config set client.budget." + key + " AMOUNT raises the budget after a restart of the agent; it begins anew with the month"
}

// fixesOf returns what can be done about the reasons in an explanation, each once.
func fixesOf(w *api.Why, s *steering) (list []string) {
	list = s.fixesOfChoice(s.unwanted(w))
	add := func(fix string) {
		if fix != "" && !slices.Contains(list, fix) {
			list = append(list, fix)
		}
	}
	switch r := w.NoteReason; {
	case r == nil:
	case r.Code == "excluded":
		add(fixOfExclusion(w.Server.Addr(), s.settings.Exclude))
	default:
		add(fixOf(r))
	}
	for i := range w.Candidates {
		switch c := &w.Candidates[i]; {
		case c.Taken:
		case c.Kind == path.InBand.String() && c.Reason.Code == "rests-blocked":
			add(fixBlocked)
		default:
			add(fixOf(&c.Reason))
		}
	}
	for i := range w.Connections {
		if r := w.Connections[i].NoteReason; r != nil {
			add(fixOf(r))
		}
	}
	return list
}

// fixOf returns what can be done about a reason. It is empty if that is nothing.
func fixOf(r *api.Reason) string {
	if r.Budget != "" {
		return fixOfBudget(r.Budget)
	}
	return fixes[r.Code]
}

// unwanted returns the waypoints of an explanation that the operator does not want.
func (s *steering) unwanted(w *api.Why) (names []string) {
	for i := range w.Candidates {
		if c := &w.Candidates[i]; c.Reason.Code == "rests-unwanted" {
			names = append(names, c.Waypoint)
		}
	}
	will := s.will()
	for _, u := range w.Unavailable {
		if !will.Allows(u.Waypoint) {
			names = append(names, u.Waypoint)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fixesOfChoice returns how to allow waypoints that the operator's choice excludes. A change of the configuration also ends
// the choice that was made while the agent ran.
func (s *steering) fixesOfChoice(excluded []string) (list []string) {
	is := &s.settings
	avoided := among(excluded, is.Avoid)
	lacking := slices.DeleteFunc(slices.Clone(excluded), func(name string) bool { return !is.UseOnly || slices.Contains(is.Use, name) })
	if len(lacking) > 0 {
		list = append(list, fmt.Sprintf("client.use_only is true and client.use lacks %s: dcol config set client.use_only false, or dcol config set client.use '%s', then dcol reload",
			strings.Join(lacking, ", "), tomlfile.List(slices.Concat(is.Use, lacking))))
	}
	if len(avoided) > 0 {
		rest := slices.DeleteFunc(slices.Clone(is.Avoid), func(name string) bool { return slices.Contains(avoided, name) })
		list = append(list, fmt.Sprintf("client.avoid has %s: dcol config set client.avoid '%s', then dcol reload", strings.Join(avoided, ", "), tomlfile.List(rest)))
	}
	if slices.ContainsFunc(excluded, func(name string) bool { return !slices.Contains(avoided, name) && !slices.Contains(lacking, name) }) {
		list = append(list, "dcol use --reset takes waypoints as the configuration says")
	}
	return list
}

// fixOfExclusion returns how to allow detours to a server that client.exclude excludes.
func fixOfExclusion(server netip.Addr, exclude []netip.Prefix) string {
	var rest []string
	for _, p := range exclude {
		if !p.Contains(server) {
			rest = append(rest, p.String())
		}
	}
	return fmt.Sprintf("dcol config set client.exclude '%s', then dcol reload, allows detours of new connections; a waypoint takes them only if its operator allows the destination as well (waypoint.allow)", tomlfile.List(rest))
}

// among returns the names that are also in list.
func among(names, list []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(list, name) })
}
