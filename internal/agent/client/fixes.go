package client

import (
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
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
	{"you do not want this waypoint", "dcol use --reset takes waypoints as the configuration says"},
	{"in-band does not get through on this path", "a tunnel hides TCP options from middleboxes: use a waypoint that offers wireguard, and have wireguard in client.kinds; dcol trace finds where the option is removed, and dcol map SERVER:PORT --via WAYPOINT shows whether the waypoint forwards to the port"},
}

const (
	fixLimit  = "on a server of your own: ip mptcp limits set subflows 8; by default, Linux accepts two besides the first"
	fixQuota  = "raise quota in the [[policy]] of these connections, or wait until quota_every has passed"
	fixBudget = "dcol config set client.budget.total AMOUNT raises the budget after a restart of the agent; it begins anew with the month"
)

// fixesOf returns what can be done about the reasons in an explanation, each once.
func fixesOf(w *api.Why) (list []string) {
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
