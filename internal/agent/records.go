package agent

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/routing"
	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// damagedRecords returns an error for each damaged record. It names the sysctls that cannot be restored and
// the file to look at.
func damagedRecords(c *config.Config) (errs []error) {
	for _, r := range []struct{ record, sysctls string }{
		{client.SysctlRecord(c.StateDir), "net.mptcp.path_manager should be kernel (before Linux 6.15: net.mptcp.pm_type should be 0), " +
			"net.mptcp.blackhole_timeout 3600 where it is 60, and net.mptcp.close_timeout 60 if client.inactivity_timeout is set"},
		{serving.FilesOf(c).Sysctls, "net.ipv4.ip_forward and net.ipv6.conf.all.forwarding should be 0 unless this host is a router, " +
			"net.netfilter.nf_conntrack_acct 0, and net.ipv6.conf.*.accept_ra 1 where it is 2"},
		{routing.SysctlRecord(c.StateDir), "net.ipv4.fib_multipath_hash_policy, net.ipv6.fib_multipath_hash_policy and net.ipv4.icmp_errors_use_inbound_ifaddr should be 0"},
	} {
		if err := netstate.Damaged(r.record); err != nil {
			errs = append(errs, fmt.Errorf("%w. When the agent does not run, %s: restore them with sysctl -w, then remove the damaged file", err, r.sysctls))
		}
	}
	return errs
}
