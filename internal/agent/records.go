package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// What an agent changes on its host, and what it must remember, is in files of the state directory.

func clientRecord(stateDir string) string   { return filepath.Join(stateDir, "client-sysctls.json") }
func waypointRecord(stateDir string) string { return filepath.Join(stateDir, "waypoint-sysctls.json") }
func waypointMemory(stateDir string) string { return filepath.Join(stateDir, "waypoint-given.json") }

// waypointCounts is in the runtime directory, as it concerns connections of the kernel that runs now.
func waypointCounts(runDir string) string { return filepath.Join(runDir, "waypoint-bytes.json") }

// restoreClient puts back the path manager of new sockets.
func restoreClient(stateDir string, log *slog.Logger) error {
	record, err := netstate.OpenRecord(clientRecord(stateDir))
	if err != nil {
		return err
	}
	log.Debug("sysctls are put back", "record", clientRecord(stateDir))
	return record.Restore()
}

// damagedRecords returns an error for each damaged record. It names the sysctls that cannot be restored and
// the file to look at.
func damagedRecords(stateDir string) (errs []error) {
	for _, r := range []struct{ record, sysctls string }{
		{clientRecord(stateDir), "net.mptcp.path_manager should be kernel (before Linux 6.15: net.mptcp.pm_type should be 0)"},
		{waypointRecord(stateDir), "net.ipv4.ip_forward and net.ipv6.conf.all.forwarding should be 0 unless this host is a router, " +
			"net.netfilter.nf_conntrack_acct 0, and net.ipv6.conf.*.accept_ra 1 where it is 2"},
	} {
		if err := netstate.Damaged(r.record); err != nil {
			errs = append(errs, fmt.Errorf("%w. When the agent does not run, %s: put them back with sysctl -w, then remove the damaged file", err, r.sysctls))
		}
	}
	return errs
}
