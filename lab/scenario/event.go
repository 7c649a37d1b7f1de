package scenario

import "github.com/detour-collective/dcol/internal/units"

// Event is a change to a link or a host in every run. It happens at the time At after the workload's start.
type Event struct {
	At units.Duration `toml:"at"`
	Change
	// Down takes the link down (true) or up (false).
	Down *bool `toml:"down"`
	// Kill names a host to kill: its programs end and its links go down.
	Kill string `toml:"kill"`

	// Host is the host that Agent, DropTCP or Renumber is about.
	Host string `toml:"host"`
	// Agent is an action on the host's agent.
	Agent AgentAction `toml:"agent"`
	// DropTCP starts (true) or stops (false) dropping all TCP that the host forwards.
	DropTCP *bool `toml:"drop_tcp"`
	// Renumber is a link on which the host gets other addresses, after the time Gap without any.
	Renumber string         `toml:"renumber"`
	Gap      units.Duration `toml:"gap"`
}

// AgentAction is an action on the agent of a host.
type AgentAction string

// The actions on an agent.
const (
	FreezeAgent  AgentAction = "freeze"  // SIGSTOP
	ThawAgent    AgentAction = "thaw"    // SIGCONT
	KillAgent    AgentAction = "kill"    // SIGKILL
	StopAgent    AgentAction = "stop"    // SIGTERM
	StartAgent   AgentAction = "start"   // after it has ended
	RestartAgent AgentAction = "restart" // SIGTERM, then start
)

// AgentActions lists all actions on an agent.
func AgentActions() []AgentAction {
	return []AgentAction{FreezeAgent, ThawAgent, KillAgent, StopAgent, StartAgent, RestartAgent}
}

// AgentMayEnd reports whether any event ends a host's agent, even if the agent is then started again.
func (s *Scenario) AgentMayEnd(host string) bool {
	for _, e := range s.Events {
		ends := e.Agent == KillAgent || e.Agent == StopAgent || e.Agent == RestartAgent
		if e.Kill == host || e.Host == host && ends {
			return true
		}
	}
	return false
}
