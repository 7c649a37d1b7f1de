package scenario

import "github.com/detour-collective/dcol/internal/units"

// Event happens inside every run, At after the workload's start: to a link, or to
// a host.
type Event struct {
	At units.Duration `toml:"at"`
	Change
	// Down takes the link down (true) or up again (false).
	Down *bool `toml:"down"`
	// Kill is a host that dies: its programs are killed, its links go down.
	Kill string `toml:"kill"`

	// Host is the host to which one of the following happens.
	Host string `toml:"host"`
	// Agent is an action on the host's agent.
	Agent AgentAction `toml:"agent"`
	// DropTCP makes the host drop all TCP that it forwards (true), or ends that (false).
	DropTCP *bool `toml:"drop_tcp"`
	// Renumber is a link on which the host gets other addresses, after Gap without any.
	Renumber string         `toml:"renumber"`
	Gap      units.Duration `toml:"gap"`
}

// AgentAction is an action on the agent of a host.
type AgentAction string

// The events of an agent.
const (
	FreezeAgent  AgentAction = "freeze"  // SIGSTOP
	ThawAgent    AgentAction = "thaw"    // SIGCONT
	KillAgent    AgentAction = "kill"    // SIGKILL
	StopAgent    AgentAction = "stop"    // SIGTERM
	StartAgent   AgentAction = "start"   // once it has ended
	RestartAgent AgentAction = "restart" // SIGTERM, and started again
)

// AgentActions lists all of them.
func AgentActions() []AgentAction {
	return []AgentAction{FreezeAgent, ThawAgent, KillAgent, StopAgent, StartAgent, RestartAgent}
}

// AgentMayEnd reports whether an event ends a host's agent, even if it then starts it again.
func (s *Scenario) AgentMayEnd(host string) bool {
	for _, e := range s.Events {
		ends := e.Agent == KillAgent || e.Agent == StopAgent || e.Agent == RestartAgent
		if e.Kill == host || e.Host == host && ends {
			return true
		}
	}
	return false
}
