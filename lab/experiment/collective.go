package experiment

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/scenario"
)

const (
	// collectiveName names the collective in networks with a coordinator.
	collectiveName = "lab"
	// joined is the folder of a joined member's identity.
	joined = "/var/lib/dcol/identity/"

	membersPort = 45672
)

// coordinatorAt returns a coordinator as members' configurations name it.
func coordinatorAt(name string, at netip.Addr) string {
	return name + "@" + netip.AddrPortFrom(at, membersPort).String()
}

func (l *Lab) coordinatorAt() string {
	hub := l.Scenario.Coordinator()
	if hub == "" {
		return ""
	}
	return coordinatorAt(hub, l.net.Host(hub).Addr())
}

// found makes a collective as a person would: the coordinator by `dcol init`, the
// others by its invitations. It returns the coordinator's agent, which runs.
func (l *Lab) found(ctx context.Context, hub string, plan agentPlan) (*program, error) {
	if _, err := l.ask(ctx, hub, "init", collectiveName, "--address", l.net.Host(hub).Addr().String(), "--no-start"); err != nil {
		return nil, blameDCol(err)
	}
	agent, err := l.startAgent(ctx, hub, plan)
	if err != nil {
		return nil, err
	}
	for _, h := range l.Scenario.Hosts {
		if !h.RunsAgent() || h.Name == hub {
			continue
		}
		if err := l.enrol(ctx, hub, h.Name); err != nil {
			return nil, blameDCol(fmt.Errorf("make %s a member: %w", h.Name, err))
		}
	}
	return agent, nil
}

// enrol has a host join by an invitation. Its configuration is written with its agent's start.
func (l *Lab) enrol(ctx context.Context, hub, name string) error {
	var line []byte
	err := waitUntil(ctx, agentLimit, 100*time.Millisecond, func() (err error) {
		line, err = l.ask(ctx, hub, "invite", "--name", name)
		return err
	})
	if err == nil {
		_, err = l.ask(ctx, name, "join", strings.TrimSpace(string(line)), "--no-start")
	}
	return err
}

// listed returns the waypoints in a client's configuration. A client that chooses its own has those of the
// directory, if there is a coordinator.
func (p agentPlan) listed() []string {
	if p.coordinator != "" && p.ownKinds {
		return nil
	}
	return p.via
}

// join adds the membership of a collective to a configuration.
func (p agentPlan) join(c map[string]any, h scenario.Host, roles []string) []string {
	c["identity"] = map[string]any{
		"certificate": joined + "member.crt", "key": joined + "member.key", "ca": joined + "ca.crt", "crl": joined + "ca.crl",
	}
	collective := map[string]any{"coordinators": []string{p.coordinator}}
	if !p.ownKinds {
		collective["waypoints"] = 0 // none but those listed
	}
	c["collective"] = collective
	if waypoint, ok := c["waypoint"].(map[string]any); ok {
		waypoint["port_mapping"] = false // no router of the lab's opens ports
	}
	if !h.Has(scenario.RoleCoordinator) {
		return roles
	}
	_, at, _ := strings.Cut(p.coordinator, "@")
	addr, _ := netip.ParseAddrPort(at) // ours
	c["coordinator"] = map[string]any{"addresses": []string{addr.Addr().String()}}
	return append(roles, "coordinator")
}
