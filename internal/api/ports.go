package api

import "fmt"

// TakenPort is a port that another program has, so that a role does not run. The role is started again every few
// seconds.
type TakenPort struct {
	Role    string `json:"role"`
	Network string `json:"network"` // udp or tcp
	Port    int    `json:"port"`
	// Holder has the port; nil: the port has become free, or this could not be found out.
	Holder *PortHolder `json:"holder,omitempty"`
}

// PortHolder is the program that has a port.
type PortHolder struct {
	User string `json:"user"`
	// Program and PID are absent where the agent may not look at other users' processes.
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`
}

// Problem describes t to the user, with the mend.
func (t TakenPort) Problem() string {
	text := fmt.Sprintf("the %s role does not run, as %s port %d is taken", t.Role, t.Network, t.Port)
	mend := fmt.Sprintf("find the program with `ss -anp -A %s 'sport = :%d'`, as root, and end it", t.Network, t.Port)
	if h := t.Holder; h != nil {
		if h.PID == 0 {
			text += " by a program of user " + h.User
		} else {
			text += fmt.Sprintf(" by %s of user %s (process %d)", h.Program, h.User, h.PID)
			mend = fmt.Sprintf("end that program (kill %d)", h.PID)
		}
	}
	return fmt.Sprintf("%s: %s. The role starts by itself when the port is free", text, mend)
}
