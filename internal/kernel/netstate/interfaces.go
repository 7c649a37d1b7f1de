package netstate

import (
	"fmt"
	"net"
)

// Interface is a network interface that is up.
type Interface struct {
	Index    int
	Name     string
	Loopback bool
}

// Interfaces lists the interfaces that are up.
func (a *Addresses) Interfaces() ([]Interface, error) {
	links, err := consistent(a.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var up []Interface
	for _, l := range links {
		if at := l.Attrs(); at.Flags&net.FlagUp != 0 {
			up = append(up, Interface{Index: at.Index, Name: at.Name, Loopback: at.Flags&net.FlagLoopback != 0})
		}
	}
	return up, nil
}
