package crew

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/setup"
	"github.com/detour-collective/dcol/lab/testbed"
	"github.com/detour-collective/dcol/packaging"
)

// programPath is the path of dcol on a host with a confined agent. The agent's user may not read the folder in which dcol was
// built.
const programPath = "/run/lab-agent"

// agentUser is the number of the user and of the group of confined agents.
const agentUser = 321

// HandOver gives a host's confined agent what root wrote, as packaging/dcol.service does before each start and at a reload.
func HandOver(h *testbed.Host) error {
	err := h.Do(func() error {
		if err := os.MkdirAll(config.DefaultRunDir, 0o755); err != nil {
			return err
		}
		return setup.HandOver(agentUser, agentUser, []string{config.DefaultRunDir, "/var/lib/dcol", "/var/log/dcol"}, config.DefaultPath)
	})
	if err != nil {
		return fmt.Errorf("give the agent of %s its files: %w", h.Name(), err)
	}
	return nil
}

// Confined prepares a host for an agent that runs as packaging/dcol.service runs it: as a user of its own, with the unit's
// capabilities and no others. It returns the command line that starts the agent.
func Confined(h *testbed.Host, dcol string) (argv []string, err error) {
	if err := HandOver(h); err != nil {
		return nil, err
	}
	if dcol, err = filepath.Abs(dcol); err != nil {
		return nil, err
	}
	if err := h.Do(func() error { return show(dcol) }); err != nil {
		return nil, err
	}
	return packaging.Confine(agentUser, agentUser, programPath, "agent"), nil
}

// show mounts a program at programPath, unless it is there.
func show(program string) error {
	wanted, err := os.Stat(program)
	if err != nil {
		return err
	}
	if there, err := os.Stat(programPath); err == nil && os.SameFile(there, wanted) {
		return nil
	}
	place, err := os.OpenFile(programPath, os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	place.Close()
	if err := unix.Mount(program, programPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", program, programPath, err)
	}
	return nil
}
