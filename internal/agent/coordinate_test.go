package agent

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
)

// Nobody can invite a coordinator, so it is not told to join again.
func TestFixOnTheCoordinator(t *testing.T) {
	fault := &collective.Error{File: "member.crt", Problem: "is missing", Err: fs.ErrNotExist, Fix: "join again"}
	c := &config.Config{Roles: []config.Role{config.RoleCoordinator}}
	c.Collective.Coordinators = []string{"hub@127.0.0.1:45672"}
	c.Coordinator.Dir = "/var/lib/dcol/coordinator"
	err := adviseCoordinator(c, fault)
	if said := err.Error(); strings.Contains(said, "; join again") || !strings.Contains(said, "do not join") || !errors.Is(err, fs.ErrNotExist) {
		t.Error(said)
	}
	c.Roles = []config.Role{config.RoleClient}
	if err := adviseCoordinator(c, fault); !errors.Is(err, fault) {
		t.Error(err)
	}
}
