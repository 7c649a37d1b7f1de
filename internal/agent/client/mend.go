package client

import (
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
)

// mends maps words of the reasons in internal/path to what a user can do about them.
var mends = []struct{ words, mend string }{
	{"the server accepts no more subflows", mendLimit},
	{"the server takes no further subflow", mendLimit},
	{"beside the first", mendLimit},
	{"the server allows no further subflow to its address", "on a server of your own: sysctl -w net.mptcp.allow_join_initial_addr_port=1, if no load balancer distributes its connections"},
	{"the quota of", mendQuota},
	{"the quotas of", mendQuota},
	{"its quota is used up", mendQuota},
	{"(client.budget.waypoint)", "dcol config set client.budget.waypoint AMOUNT raises the budget after a restart of the agent; it begins anew with the month"},
	{"(client.budget.metered)", "dcol config set client.budget.metered AMOUNT raises the budget after a restart of the agent; it begins anew with the month"},
	{"(client.budget.total)", mendBudget},
	{"budget of bytes through waypoints is used up", mendBudget},
	{"you do not want this waypoint", "dcol use --reset takes waypoints as the configuration says"},
	{"in-band does not get through on this path", "a tunnel hides TCP options from middleboxes: use a waypoint that offers wireguard, and have wireguard in client.kinds; dcol trace finds where the option is removed, and dcol map SERVER:PORT --via WAYPOINT shows whether the waypoint forwards to the port"},
}

const (
	mendLimit  = "on a server of your own: ip mptcp limits set subflows 8; by default, Linux accepts two besides the first"
	mendQuota  = "raise quota in the [[policy]] of these connections, or wait until quota_every has passed"
	mendBudget = "dcol config set client.budget.total AMOUNT raises the budget after a restart of the agent; it begins anew with the month"
)

// mendsOf returns what can be done about the reasons in an explanation, each once.
func mendsOf(w *api.Why) (list []string) {
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
		for _, m := range mends {
			if strings.Contains(reason, m.words) && !slices.Contains(list, m.mend) {
				list = append(list, m.mend)
			}
		}
	}
	return list
}
