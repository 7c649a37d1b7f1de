package client

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/units"
)

// Limits that this host cannot apply to what it sends are a problem for the status, if a policy has some.
func TestSetterCannotBeHad(t *testing.T) {
	for _, c := range []struct {
		policy   config.Policy
		problems int
	}{{config.Policy{}, 0}, {config.Policy{UserTimeout: units.Duration(time.Second)}, 1}} {
		h := &host{log: slog.New(slog.DiscardHandler)}
		if s := h.openSetter(t.TempDir(), nil, []config.Policy{c.policy}); s != nil || len(h.problems) != c.problems {
			t.Errorf("%+v: %v, problems %q", c.policy, s, h.problems)
		}
		for _, p := range h.problems {
			if !strings.Contains(p, "user_timeout") || !strings.Contains(p, "cgroup v2") {
				t.Errorf("problem %q", p)
			}
		}
	}
}
