package packaging

import "os"

// SystemdRuns reports whether systemd runs this host, as sd_booted(3) does.
func SystemdRuns() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// StartCommand is what the operator types to start the agent on this host.
func StartCommand() string {
	if SystemdRuns() {
		return "systemctl start dcol"
	}
	return "dcol up"
}
