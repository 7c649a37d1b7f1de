package api

import "fmt"

// TakenPort describes a role that does not run because another program uses its port. The agent tries to start the role
// again every few seconds.
type TakenPort struct {
	Role    string `json:"role"`
	Network string `json:"network"` // udp or tcp
	Port    int    `json:"port"`
	// Holder is the program that uses the port. It is nil if it was not found, or if the port is free again.
	Holder *PortHolder `json:"holder,omitempty"`
}

// PortHolder describes a program that uses a port.
type PortHolder struct {
	User string `json:"user"`
	// Program and PID are absent if the agent may not see other users' processes.
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`
}

// Problem describes t to the user, and how to fix it.
func (t TakenPort) Problem() string {
	text := fmt.Sprintf("the %s role does not run because %s port %d is in use", t.Role, t.Network, t.Port)
	fix := fmt.Sprintf("find the program as root with `ss -anp -A %s 'sport = :%d'`, and end it", t.Network, t.Port)
	if h := t.Holder; h != nil {
		if h.PID == 0 {
			text += " by a program of user " + h.User
		} else {
			text += fmt.Sprintf(" by %s of user %s (process %d)", h.Program, h.User, h.PID)
			fix = fmt.Sprintf("end that program (kill %d)", h.PID)
		}
	}
	return fmt.Sprintf("%s: %s. The role starts when the port is free", text, fix)
}
