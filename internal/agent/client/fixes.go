package client

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// fixes maps words of the reasons in internal/path to what a user can do about them.
var fixes = []struct{ words, fix string }{
	{"the server accepts no more subflows", fixLimit},
	{"the server takes no further subflow", fixLimit},
	{"beside the first", fixLimit},
	{"the server allows no further subflow to its address", "on a server of your own: sysctl -w net.mptcp.allow_join_initial_addr_port=1, if no load balancer distributes its connections"},
	{"the quota of", fixQuota},
	{"the quotas of", fixQuota},
	{"its quota is used up", fixQuota},
	{"(client.budget.waypoint)", "dcol config set client.budget.waypoint AMOUNT raises the budget after a restart of the agent; it begins anew with the month"},
	{"(client.budget.metered)", "dcol config set client.budget.metered AMOUNT raises the budget after a restart of the agent; it begins anew with the month"},
	{"(client.budget.total)", fixBudget},
	{"budget of bytes through waypoints is used up", fixBudget},
	{"was in client.exclude when the connection began", "open a new connection: client.exclude decides when a connection begins"},
	{"in-band does not get through on this path", "a tunnel hides TCP options from middleboxes: use a waypoint that offers wireguard, and have wireguard in client.kinds; dcol trace finds where the option is removed, and dcol map SERVER:PORT --via WAYPOINT shows whether the waypoint forwards to the port"},
}

const (
	fixLimit  = "on a server of your own: ip mptcp limits set subflows 8; by default, Linux accepts two besides the first"
	fixQuota  = "raise quota in the [[policy]] of these connections, or wait until quota_every has passed"
	fixBudget = "dcol config set client.budget.total AMOUNT raises the budget after a restart of the agent; it begins anew with the month"
)

// fixesOf returns what can be done about the reasons in an explanation, each once.
func fixesOf(w *api.Why, s *steering) (list []string) {
	list = s.fixesOfChoice(unwanted(w))
	if strings.Contains(w.Note, "is in client.exclude") {
		list = append(list, fixOfExclusion(w.Server.Addr(), s.settings.Exclude))
	}
	reasons := []string{w.Note}
	for i := range w.Candidates {
		if !w.Candidates[i].Taken {
			reasons = append(reasons, w.Candidates[i].Why)
		}
	}
	for i := range w.Connections {
		reasons = append(reasons, w.Connections[i].Note)
	}
	for _, reason := range reasons {
		for _, f := range fixes {
			if strings.Contains(reason, f.words) && !slices.Contains(list, f.fix) {
				list = append(list, f.fix)
			}
		}
	}
	return list
}

// unwanted returns the waypoints of which an explanation says that the operator does not want them.
func unwanted(w *api.Why) (names []string) {
	for i := range w.Candidates {
		if c := &w.Candidates[i]; !c.Taken && c.Why == unwantedWords {
			names = append(names, c.Waypoint)
		}
	}
	for _, u := range w.Unavailable {
		if u.Why == unwantedWords {
			names = append(names, u.Waypoint)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var unwantedWords = policy.Rest{Cause: policy.RestsUnwanted}.Words(path.InBand)

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
